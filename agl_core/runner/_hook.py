"""The callbacks that users write around rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.types import ParallelWorkerBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agl_core.agent import LitAgent
    from agl_core.runner._base import Runner
    from agl_core.tracer import Tracer
    from agl_core.types import AttemptedRollout, Span


class Hook(ParallelWorkerBase):
    """User callbacks around each rollout; override what you need.

    An error of a callback is logged and does not affect the rollout. With several runners in one
    process the same hook object is called concurrently.
    """

    async def on_rollout_start(
        self, *, agent: LitAgent[Any], runner: Runner[Any], rollout: AttemptedRollout
    ) -> None:
        """Called before the trace context of the attempt opens."""

    async def on_trace_start(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        tracer: Tracer,
        rollout: AttemptedRollout,
    ) -> None:
        """Called inside the trace context, before the agent's code."""

    async def on_trace_end(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        tracer: Tracer,
        rollout: AttemptedRollout,
        error: BaseException | None = None,
    ) -> None:
        """Called inside the trace context after the agent's code, also when it raised.

        A hook written without the ``error`` parameter is called without it.
        """

    async def on_rollout_end(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        rollout: AttemptedRollout,
        spans: Sequence[Span],
    ) -> None:
        """Called after the result was processed, before the attempt's final status is written."""
