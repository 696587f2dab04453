"""Runs an agent on a suite of recorded rollouts: :func:`replay_suite`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agl_core.agent import LitAgent
from agl_core.algorithm import comparable
from agl_core.errors import ConfigError
from agl_core.runner import Hook
from agl_core.tracer import Tracer
from agl_replay.proxy import replay_proxy
from agl_replay.replaying import ReplayResult, run_session
from agl_replay.session import OnDivergence, ReplaySession
from agl_replay.suites import Suite
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

__all__ = ["SuiteResult", "replay_suite"]


@dataclass(frozen=True)
class SuiteResult:
    """The outcome of a suite.

    Attributes:
        results: One per recording, in the order of the suite.
    """

    results: Sequence[ReplayResult]

    @property
    def changed(self) -> Sequence[ReplayResult]:
        """The tasks whose calls, reward or spans differ."""
        return [one for one in self.results if not one.same]

    @property
    def worse(self) -> Sequence[ReplayResult]:
        """The tasks whose reward is lower than the recorded one."""
        return [one for one in self.results if one.reward_change < 0]

    @property
    def rewards(self) -> tuple[float, float]:
        """The mean reward then and now; one without a reward is below all others.

        Raises:
            ConfigError: The suite has no recording.
        """
        if not self.results:
            raise ConfigError("a suite without recordings has no mean reward; record it again")
        then, now = comparable(
            [one.recording.reward for one in self.results], [one.reward for one in self.results]
        )
        return fmean(then), fmean(now)


async def replay_suite(
    agent: LitAgent[Any],
    suite: Suite,
    *,
    on_divergence: OnDivergence = "stop",
    model_list: Sequence[Mapping[str, Any]] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
    on_result: Callable[[int], None] | None = None,
) -> SuiteResult:
    """Replay each recording of a suite, one after another, without a model server.

    Args:
        agent: The agent.
        suite: The recordings (:func:`~agl_replay.suites.read_suite`).
        on_divergence: What to do in a task whose request differs: ``stop`` refuses this and all
            later calls, ``live`` sends them to the live models.
        model_list: Live models, in LiteLLM's form; by default those of the recorded resources.
        tracer: Records the replays; a new :class:`~agl_tracer_otel.OtelTracer` by default.
        hooks: Callbacks around each rollout.
        on_result: Called after each task, with the number of tasks that are done.
    """
    target = InMemoryLightningStore()
    tracer = tracer or OtelTracer()
    results: list[ReplayResult] = []
    async with AsyncExitStack() as stack:
        for recording in suite.recordings:  # recordings of the same models share one proxy
            await stack.enter_async_context(replay_proxy(recording, target))
        for recording in suite.recordings:
            session = ReplaySession(
                recording.calls, recording.operations, on_divergence=on_divergence
            )
            result = await run_session(
                agent,
                recording,
                session,
                target,
                model_list=model_list,
                tracer=tracer,
                hooks=hooks,
            )
            results.append(result)
            if on_result is not None:
                on_result(len(results))
    return SuiteResult(results)
