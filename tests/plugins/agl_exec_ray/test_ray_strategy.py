"""The strategy for Ray on a real cluster: placement, environments, scaling, tokens, failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agl_core.errors import ConfigError, LaunchError, PermissionDeniedError
from agl_core.execution import ExecutionEvent
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate
from agl_exec_ray import RayConfig, RayExecutionStrategy
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_exec_ray.parts import RETRIED, actor_processes


@pytest.fixture
def strategy(cluster: Any) -> Any:
    def make(n_runners: int = 1, **options: Any) -> RayExecutionStrategy:
        defaults = {"num_cpus": 0.5, "graceful_timeout": 2, "terminate_timeout": 5}
        return RayExecutionStrategy(n_runners=n_runners, **(defaults | options))

    return make


# Functions create the bundles, so that they are pickled by value.


def make_runner() -> Any:
    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        """Finish rollouts, recording the process and a variable of its environment."""
        while not event.is_set():
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=1)
            if claimed is None:
                continue
            if claimed.input == "exit":
                os._exit(0)
            while claimed.input == "hold" and await store.get_latest_resources() is None:
                await asyncio.sleep(0.1)
            found = {"pid": os.getpid(), "colour": os.environ.get("COLOUR")}
            await store.update_attempt(
                claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", metadata=found
            )

    return runner


def make_batch(inputs: Sequence[Any], config: Any = None) -> Any:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        rollouts = [await store.enqueue_rollout(each, config=config) for each in inputs]
        await store.wait_for_rollouts(
            rollout_ids=[rollout.rollout_id for rollout in rollouts], timeout=60
        )
        await store.add_resources(
            {"pid": PromptTemplate(template=str(os.getpid()), engine="f-string")}
        )

    return algorithm


def metadata_of(store: LightningStore) -> list[dict[str, Any]]:
    """Return the metadata of the latest attempts."""
    rollouts = asyncio.run(store.query_rollouts()).items
    return [getattr(rollout, "attempt").metadata for rollout in rollouts]  # noqa: B009


def pid_of_algorithm(store: LightningStore) -> int:
    update = asyncio.run(store.get_latest_resources())
    assert update is not None
    return int(getattr(update.resources["pid"], "template"))  # noqa: B009


def test_runners_share_the_process_of_their_actor_and_get_its_environment(strategy: Any) -> None:
    store = InMemoryLightningStore()
    environment = {"env_vars": {"COLOUR": "green"}}
    made = strategy(4, runners_per_actor=2, runtime_env=environment)
    made.execute(make_batch(list(range(30))), make_runner(), store)
    found = metadata_of(store)
    pids = {each["pid"] for each in found}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids
    assert {each["colour"] for each in found} == {"green"}
    workers = {worker.worker_id for worker in asyncio.run(store.query_workers())}
    assert workers <= {f"Worker-{i}" for i in range(4)}
    assert pid_of_algorithm(store) == os.getpid()


def test_the_algorithm_can_run_in_the_cluster(strategy: Any) -> None:
    store = InMemoryLightningStore()
    strategy(algorithm="actor", algorithm_num_cpus=0.5).execute(
        make_batch([1, 2]), make_runner(), store
    )
    assert pid_of_algorithm(store) != os.getpid()
    assert len(metadata_of(store)) == 2


def test_the_error_of_an_algorithm_in_the_cluster_is_raised(strategy: Any) -> None:
    def make() -> Any:
        async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
            raise ZeroDivisionError("the algorithm failed")

        return algorithm

    with pytest.raises(ZeroDivisionError, match="the algorithm failed"):
        strategy(algorithm="actor").execute(make(), make_runner(), InMemoryLightningStore())


def test_an_actor_that_dies_again_and_again_ends_the_run(strategy: Any) -> None:
    store = InMemoryLightningStore()
    with pytest.raises(RuntimeError, match="runner-0 died"):
        strategy(1, max_restarts=1).execute(make_batch(["exit"], RETRIED), make_runner(), store)
    (rollout,) = asyncio.run(store.query_rollouts())
    attempts = asyncio.run(store.query_attempts(rollout.rollout_id))
    assert [attempt.status for attempt in attempts] == ["failed"] * 2
    assert {(each.metadata or {})["error"] for each in attempts} == {"its runner died"}


def test_resources_that_ray_refuses_end_the_run(strategy: Any) -> None:
    refused = strategy(1, resources={"GPU": 1})  # Ray wants num_gpus for them
    with pytest.raises(RuntimeError, match=r"runner-0 did not start: .*GPU"):
        refused.execute(make_batch([1]), make_runner(), InMemoryLightningStore())


def test_actors_start_with_the_work_and_end_without_it(strategy: Any) -> None:
    counts: dict[str, int] = {}

    def make() -> Any:
        def running() -> int:
            return len(actor_processes())

        async def until(wanted: int) -> None:
            while running() != wanted:
                await asyncio.sleep(0.1)

        async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
            counts["before"] = running()
            async with asyncio.timeout(60):
                # The first actor must not do all the work before the second one has started.
                batch = asyncio.create_task(make_batch(["hold"] * 8)(store, event))
                await until(2)
                await store.add_resources({})
                await batch
                await until(0)
                await make_batch([1])(store, event)
                counts["one rollout"] = running()

        return algorithm

    store = InMemoryLightningStore()
    made = strategy(4, min_runners=0, rollouts_per_runner=4, idle_timeout=0.5)
    made.execute(make(), make_runner(), store)
    assert counts == {"before": 0, "one rollout": 1}
    assert {attempt["pid"] for attempt in metadata_of(store)}


def test_on_a_network_the_server_asks_for_a_token(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGL_AUTH_TOKEN", raising=False)
    refused: list[str] = []

    async def algorithm(store: Any, event: ExecutionEvent) -> None:
        await make_batch([1])(store, event)
        assert "127.0.0.1" not in store.endpoint
        stranger = LightningStoreClient(store.endpoint)
        try:
            await stranger.query_rollouts()
        except PermissionDeniedError as error:
            refused.append(str(error))
        await stranger.close()

    store = InMemoryLightningStore()
    strategy().execute(algorithm, make_runner(), store)
    assert len(refused) == 1
    assert len(metadata_of(store)) == 1


async def test_the_store_can_have_a_server_already(strategy: Any) -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    try:
        client = LightningStoreClient(server.endpoint)
        thread = threading.Thread(
            target=strategy().execute, args=(make_batch([1, 2]), make_runner(), client)
        )
        thread.start()
        await asyncio.to_thread(thread.join)
        statuses = [each.status for each in await server.query_rollouts()]
        assert statuses == ["succeeded"] * 2
        await client.close()
    finally:
        await server.stop()


def test_what_cannot_be_pickled_is_refused_before_the_run(strategy: Any) -> None:
    lock = threading.Lock()

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        lock.acquire()

    with pytest.raises(LaunchError, match="the agent cannot be pickled for Ray"):
        strategy().execute(make_batch([]), runner, InMemoryLightningStore())


def test_wrong_options_are_refused() -> None:
    with pytest.raises((ConfigError, ValidationError), match="min_runners is larger"):
        RayConfig(n_runners=1, min_runners=2)


AGENT = """
import agl_core as agl
import only_in_the_working_dir

@agl.rollout
async def answer(task: dict, prompt_template: agl.PromptTemplate) -> float:
    return only_in_the_working_dir.reward(task["n"])
"""

TRAIN = """
agent = "my_agent:answer"
algorithm = "baseline"
train_dataset = [{n = 1}, {n = 2}, {n = 3}]
[resources.prompt]
resource_type = "prompt_template"
template = "{n}"
engine = "f-string"
[trainer]
n_runners = 2
[logging]
level = "INFO"
[store]
type = "sqlite"
path = "run.db"
"""


def test_a_train_file_runs_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "only_in_the_working_dir.py").write_text("def reward(n): return n / 10\n")
    (tmp_path / "train.toml").write_text(TRAIN)
    ended = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("agl")), "train", "train.toml"),
            *("--set", "strategy=ray", "--set", "strategy.num_cpus=0.5"),
            *("--set", "strategy.runtime_env.working_dir='.'"),
        ],
        cwd=tmp_path,
        env=os.environ | {"RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3/3" in ended.stdout + ended.stderr


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1:9"])
def test_an_address_that_cannot_be_used_is_named(address: str) -> None:
    program = (
        "import agl_core as agl, sys\n"
        "from agl_store_memory import InMemoryLightningStore\n"
        "from agl_exec_ray import RayExecutionStrategy\n"
        "try:\n"
        f"    RayExecutionStrategy(address={address!r}).execute(None, None, "
        "InMemoryLightningStore())\n"
        "except agl.errors.AglError as error:\n"
        "    print('refused:', error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert "refused:" in ended.stdout
    assert ("ray job submit" if "ray://" in address else address) in ended.stdout
