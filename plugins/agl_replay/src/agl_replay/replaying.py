"""Runs an agent on recordings: :func:`replay`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agl_core.agent import LitAgent
from agl_core.algorithm import comparable
from agl_core.errors import ConfigError
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_core.types import Rollout, Span
from agl_proxy_direct import DirectProxy
from agl_replay.attempt import in_session
from agl_replay.comparison import compare_spans
from agl_replay.environment import environment_for
from agl_replay.forking import Started
from agl_replay.proxy import replay_proxy
from agl_replay.recording import RecordedCall, Recording, final_reward, read_recording
from agl_replay.report import changed_at, result_lines
from agl_replay.session import Divergence, OnDivergence, ReplaySession
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

__all__ = ["ReplayResult", "replay"]


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a replay.

    Attributes:
        recording: The recording that was replayed.
        rollout: The rollout of the replay.
        spans: Its spans.
        answered: Calls answered from the recording.
        live: Calls answered by the live model.
        stopped: Whether it was stopped after the calls that were asked for.
        divergence: The first call that differed; None if none did.
        unasked: Recorded calls that the agent did not make; empty if it was stopped or diverged.
        skipped: Ids of recorded spans below operations that were answered from the recording.
        error: The agent's error; None if it returned.
        seconds: Duration of the agent's run.
    """

    recording: Recording
    rollout: Rollout
    spans: Sequence[Span]
    answered: int
    live: int
    stopped: bool
    divergence: Divergence | None
    unasked: Sequence[RecordedCall]
    skipped: frozenset[str]
    error: Exception | None
    seconds: float

    @property
    def reward(self) -> float | None:
        """The final reward."""
        return final_reward(self.spans)

    @cached_property
    def differing_spans(self) -> Sequence[str]:
        """Spans that only the recording (``-``) or only the replay (``+``) has."""
        return compare_spans(self.recording, self.spans, self.skipped)

    @property
    def same(self) -> bool:
        """Whether the agent made the recorded calls, with the same reward and the same spans."""
        return (
            self.divergence is None
            and not self.unasked
            and self.reward == self.recording.reward
            and not self.differing_spans
        )

    @property
    def reward_change(self) -> float:
        """The new reward minus the recorded one; a missing reward counts as the lower one."""
        then, now = comparable([self.recording.reward], [self.reward])
        return now[0] - then[0]

    @property
    def changed_at(self) -> str:
        """The first place that differs, e.g. ``call 2: messages[1]``; empty if none does."""
        return changed_at(self)

    def __str__(self) -> str:
        return "\n".join(result_lines(self))


async def replay(
    agent: LitAgent[Any],
    rollout_id: str | Recording,
    store: LightningStore | None = None,
    *,
    attempt_id: str | None = None,
    until: int | None = None,
    on_divergence: OnDivergence = "stop",
    model_list: Sequence[Mapping[str, Any]] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
) -> ReplayResult:
    """Run an agent on a recorded rollout; its model calls are answered from the recording.

    The agent gets the recorded task and resources. Its models are replaced by a proxy that answers
    with what the model answered then. The replay is stored in memory, so it leaves nothing behind.

    Args:
        agent: The agent.
        rollout_id: The rollout, or a recording that was read before.
        store: The store that has the rollout.
        attempt_id: The attempt; None takes the latest.
        until: Stop the agent after this many calls; None replays all.
        on_divergence: What to do when a request differs from the recorded one: ``stop`` refuses
            this and all later calls, ``live`` sends them to live models.
        model_list: Live models, in LiteLLM's form; by default those of the recorded resources.
        tracer: Records the replay; a new :class:`~agl_tracer_otel.OtelTracer` by default.
        hooks: Callbacks around the rollout.

    Raises:
        RolloutNotFoundError: The store has no such rollout.
        NotReplayableError: No call of the rollout can be replayed.
    """
    recording = await recorded(rollout_id, store, attempt_id)
    session = ReplaySession(
        recording.calls, recording.operations, until=until, on_divergence=on_divergence
    )
    target = InMemoryLightningStore()
    return await run_session(
        agent, recording, session, target, model_list=model_list, tracer=tracer, hooks=hooks
    )


async def recorded(
    rollout_id: str | Recording, store: LightningStore | None, attempt_id: str | None = None
) -> Recording:
    """Return the given recording, or read that of a rollout from its store."""
    if isinstance(rollout_id, Recording):
        return rollout_id
    if store is None:
        raise ConfigError("a rollout's id needs the store that has it")
    return await read_recording(store, rollout_id, attempt_id)


async def run_session(
    agent: LitAgent[Any],
    recording: Recording,
    session: ReplaySession,
    target: LightningStore,
    *,
    model_list: Sequence[Mapping[str, Any]] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
) -> ReplayResult:
    """Run an agent once in a session; the new rollout is written to ``target``."""
    live = DirectProxy(model_list=model_list, store=target) if model_list else None
    started = Started()
    runner: LitAgentRunner[Any] = LitAgentRunner(tracer or OtelTracer(), heartbeat_interval=0)
    error: Exception | None = None
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(environment_for(recording.resources))
        proxy = await stack.enter_async_context(replay_proxy(recording, target))
        if live is not None:
            await live.start()
            stack.push_async_callback(live.stop)
        wrapped = in_session(agent, session, proxy, live, environment=environment)
        began = time.monotonic()
        with runner.run_context(agent=wrapped, store=target, hooks=[*hooks, started]):
            try:
                await runner.step(
                    recording.rollout.input,
                    resources=recording.resources,
                    mode=recording.rollout.mode,
                )
            except Exception as raised:
                if not started.ids:
                    raise
                error = raised
        seconds = time.monotonic() - began
    (rollout,) = await target.query_rollouts(rollout_id_in=started.ids)
    return ReplayResult(
        recording=recording,
        rollout=rollout,
        spans=list(await target.query_spans(rollout.rollout_id)),
        answered=session.answered,
        live=session.live,
        stopped=session.stopped,
        divergence=session.divergence,
        unasked=() if session.stopped or session.divergence else session.unasked,
        skipped=frozenset(session.skipped),
        error=error,
        seconds=seconds,
    )
