"""An algorithm for tests, and the outcome of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from agl_core.emitter import find_final_reward
from agl_core.execution import ExecutionEvent
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, PromptTemplate, RolloutConfig
from tests.plugins.agl_exec_k8s.cluster import Cluster

ROOT = Path(__file__).parents[3]
RETRIED = RolloutConfig(max_attempts=5, retry_condition=["failed"])


def make_batch(
    inputs: Sequence[Any], meanwhile: Callable[[], None] | None = None, config: Any = RETRIED
) -> Any:
    """Return an algorithm that enqueues tasks, has something done, and waits for them."""

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        prompt = PromptTemplate(template="{n}", engine="f-string")
        resources = (await store.add_resources({"prompt": prompt})).resources_id
        queued = await store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(input=each, resources_id=resources, config=config)
                for each in inputs
            ]
        )
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        waiting = asyncio.ensure_future(
            store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued], timeout=60)
        )
        stopped = asyncio.ensure_future(event.wait_async())
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        waiting.cancel()

    return algorithm


async def outcome(store: LightningStore) -> tuple[list[str], list[str], list[float | None]]:
    """Return the statuses of the rollouts, the errors of attempts, and the rewards."""
    statuses: list[str] = []
    errors: list[str] = []
    rewards: list[float | None] = []
    for rollout in await store.query_rollouts():
        statuses.append(rollout.status)
        spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
        rewards.append(find_final_reward(spans))
        attempts = await store.query_attempts(rollout.rollout_id)
        errors += [
            str((attempt.metadata or {}).get("error"))
            for attempt in attempts
            if attempt.status != "succeeded"
        ]
    return statuses, errors, rewards


def working_pod(cluster: Cluster) -> str:
    """Wait until a pod works on a rollout; return its name."""
    found: list[str] = []

    def works() -> bool:
        found[:] = [name for name in cluster.running() if "works on" in cluster.log(name)]
        return bool(found)

    cluster.wait_until(works)
    return found[0]


def permissions() -> set[tuple[str, str]]:
    """Return the verbs and kinds of the Role that the documentation tells to create."""
    text = (ROOT / "plugins/agl_exec_k8s/README.md").read_text()
    return allowed_by(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["rules"])


def allowed_by(rules: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the verbs and kinds of the rules of a Role."""
    return {(verb, kind) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}
