"""Forks: rollouts that repeat the first calls of a recorded rollout and sample the rest again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agl_core.agent import LitAgent
from agl_core.errors import InvalidArgumentError
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_core.types import (
    LLM,
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    ReplayConfig,
    Rollout,
    RolloutConfig,
)
from agl_proxy_direct import DirectProxy
from agl_replay.attempt import live_through
from agl_replay.recording import (
    NotReplayableError,
    find_recorded,
    read_recording,
    recorded_resources,
)
from agl_replay.session import OnDivergence
from agl_runner import LitAgentRunner
from agl_tracer_otel import OtelTracer

__all__ = ["fork", "fork_requests", "fork_requests_at"]


def fork_requests(
    rollout: Rollout,
    attempt_id: str,
    *,
    at: int,
    samples: int = 1,
    resources_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    on_divergence: OnDivergence | Literal["ignore"] = "stop",
) -> list[EnqueueRolloutRequest]:
    """Return requests for forks of a rollout, for the runners of the store.

    ::

        requests = fork_requests(rollout, attempt_id, at=2, samples=4)
        forks = await store.enqueue_many_rollouts(requests)

    A fork is a rollout with its parent and its turn in ``config.replay``. Calls up to ``at`` get
    the recorded answers with their token ids; all later calls go to the models of the fork's
    resources. Training rows leave the repeated calls out (mask 0), so each token that was sampled
    is trained on once.

    Args:
        rollout: The parent.
        attempt_id: The recorded attempt of it.
        at: Number of calls to repeat; 0 samples all calls again.
        samples: Number of forks.
        resources_id: Snapshot to run with; by default the parent's.
        metadata: Metadata of the forks; the parent's is not copied, since it may name a batch.
        on_divergence: What to do when a repeated call differs: fail the fork, go live there, or
            answer it with the recorded answer all the same, for forks with another prompt.
    """
    replay = ReplayConfig(
        rollout_id=rollout.rollout_id,
        attempt_id=attempt_id,
        until=at,
        then="live",
        on_divergence=on_divergence,
    )
    config = rollout.config.model_copy(update={"replay": replay})
    request = EnqueueRolloutRequest(
        input=rollout.input,
        mode=rollout.mode,
        resources_id=resources_id or rollout.resources_id,
        config=config,
        metadata=metadata,
    )
    return [request.model_copy(deep=True) for _ in range(samples)]


async def fork_requests_at(
    store: LightningStore,
    rollout_id: str,
    *,
    span_id: str,
    samples: int = 1,
    metadata: dict[str, Any] | None = None,
) -> list[EnqueueRolloutRequest]:
    """Return requests for forks that sample a model call of a rollout again, and all after it.

    Args:
        store: The store that has the rollout.
        rollout_id: The parent; its latest attempt is forked.
        span_id: A span of the call, of the proxy or of the agent's own client.
        samples: Number of forks.
        metadata: Metadata of the forks.

    Raises:
        RolloutNotFoundError: The store has no such rollout.
        NotReplayableError: The rollout made no call of that span that can be replayed.
    """
    recording = await read_recording(store, rollout_id)
    # A client's span of the call is the parent of the proxy's.
    number = next(
        (
            call.number
            for call in recording.calls
            if span_id in (call.span.span_id, call.span.parent_id)
        ),
        None,
    )
    if number is None:
        raise NotReplayableError(f"rollout {rollout_id} recorded no call of the span {span_id}")
    return fork_requests(
        recording.rollout,
        recording.attempt.attempt_id,
        at=number - 1,
        samples=samples,
        metadata=metadata,
    )


async def fork(
    agent: LitAgent[Any],
    rollout_id: str,
    store: LightningStore,
    *,
    at: int,
    samples: int = 1,
    attempt_id: str | None = None,
    on_divergence: OnDivergence = "stop",
    model_list: Sequence[Mapping[str, Any]] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
) -> list[Rollout]:
    """Fork a rollout in this process, and return the finished forks, which are in its store.

    Forks of an async agent run at the same time, those of a sync agent one after another. A fork
    that fails is returned with the status ``failed``. None is repeated, whatever its parent's
    config says: a fork left in the queue would be run by the next agent of the store.

    Args:
        agent: The agent.
        rollout_id: The parent.
        store: The store that has the parent; the forks are added to it.
        at: Number of calls to repeat.
        samples: Number of forks.
        attempt_id: The attempt; None takes the latest.
        on_divergence: What to do when a repeated call differs.
        model_list: Live models, in LiteLLM's form; by default those of the recorded resources. A
            single one answers the calls of all models of the recorded resources.
        tracer: Records the forks; a new :class:`~agl_tracer_otel.OtelTracer` by default.
        hooks: Callbacks around each fork.

    Raises:
        RolloutNotFoundError: The store has no such rollout.
        AttemptNotFoundError: The rollout has no such attempt.
        NotReplayableError: There are calls to repeat, and the attempt made none that can be.
        InvalidArgumentError: It made fewer calls than there are to repeat.
    """
    parent, attempt = await find_recorded(store, rollout_id, attempt_id)
    if at:  # a fork that samples all calls needs no recorded one
        recorded = len((await read_recording(store, rollout_id, attempt.attempt_id)).calls)
        if at > recorded:
            many = f"{recorded} call{'s' * (recorded > 1)}"
            raise InvalidArgumentError(
                f"rollout {rollout_id} recorded {many}: fork it at {recorded} or less, not at {at}"
            )
    requests = fork_requests(
        parent, attempt.attempt_id, at=at, samples=samples, on_divergence=on_divergence
    )
    proxy = None
    if model_list:
        models = _for_recorded(model_list, await recorded_resources(store, parent))
        proxy = DirectProxy(model_list=models, store=store)
        await proxy.start()
    runner: LitAgentRunner[Any] = LitAgentRunner(tracer or OtelTracer(), heartbeat_interval=0)
    started = Started()
    width = asyncio.Semaphore(samples if agent.concurrent else 1)

    async def run(request: EnqueueRolloutRequest) -> None:
        async with width:
            await runner.step(
                request.input,
                mode=request.mode,
                config=_once(request.config),
                resources_id=request.resources_id,
            )

    try:
        with (
            live_through(proxy),
            runner.run_context(agent=agent, store=store, hooks=[*hooks, started]),
        ):
            ended = await asyncio.gather(*map(run, requests), return_exceptions=True)
    finally:
        if proxy is not None:
            await proxy.stop()
    errors = [error for error in ended if error is not None]
    if len(started.ids) < samples or not all(isinstance(error, Exception) for error in errors):
        raise errors[0]
    forks = {one.rollout_id: one for one in await store.query_rollouts(rollout_id_in=started.ids)}
    return [forks[rollout_id] for rollout_id in started.ids]


def _once(config: RolloutConfig | None) -> RolloutConfig:
    """Return a config after which no failed attempt goes back to the queue."""
    once = {"max_attempts": 1, "retry_condition": [], "infrastructure_retries": 0}
    return (config or RolloutConfig()).model_copy(update=once)


def _for_recorded(
    model_list: Sequence[Mapping[str, Any]], resources: NamedResources
) -> Sequence[Mapping[str, Any]]:
    """Return a model list in which an only live model has the names of the recorded ones, too."""
    live = {entry.get("model_name") for entry in model_list}
    if len(live) > 1:
        return model_list
    recorded = {one.model: None for one in resources.values() if isinstance(one, LLM)}
    others = [name for name in recorded if name not in live]
    return [
        *model_list,
        *({**entry, "model_name": name} for name in others for entry in model_list),
    ]


class Started(Hook):
    """Notes the rollouts that a runner starts."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    async def on_rollout_start(self, *, rollout: AttemptedRollout, **_: Any) -> None:
        self.ids.append(rollout.rollout_id)
