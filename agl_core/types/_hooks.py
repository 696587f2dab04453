"""Callbacks around rollouts, the worker life cycle they share, and the dataset protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agl_core.agent import LitAgent
    from agl_core.runner import Runner
    from agl_core.tracer import Tracer
    from agl_core.types._rollout import AttemptedRollout
    from agl_core.types._span import Span

__all__ = ["Dataset", "Hook", "ParallelWorkerBase"]

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Dataset(Protocol[T_co]):
    """Anything with a length and items by index; a list qualifies."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...
    def __len__(self) -> int: ...


class ParallelWorkerBase:
    """Life cycle of something that several workers use.

    The order is ``init`` in the main process, ``init_worker`` in each worker, ``run``,
    ``teardown_worker`` in each worker, ``teardown`` in the main process.
    """

    worker_id: int | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Called once before any worker starts."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Called in each worker before its first task."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Do the work."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Called in each worker after its last task."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Called once after every worker has stopped."""


class Hook(ParallelWorkerBase):
    """User callbacks around each rollout; override what you need.

    A callback that raises is logged and changes nothing else. With several runners in one process
    the same hook object is called concurrently.
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
