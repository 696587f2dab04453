"""Datasets, stop events, and the life cycle of things that several workers use."""

from __future__ import annotations

from typing import Any, Protocol, SupportsIndex, TypeVar, runtime_checkable

__all__ = ["Dataset", "ExecutionEvent", "ParallelWorkerBase"]

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


@runtime_checkable
class ExecutionEvent(Protocol):
    """A flag that can be waited for; the interface of :class:`threading.Event` and one more."""

    def set(self) -> None:
        """Raise the flag and wake every waiter. Idempotent."""
        ...

    def clear(self) -> None:
        """Lower the flag."""
        ...

    def is_set(self) -> bool:
        """Tell whether the flag is up."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is up, at most ``timeout`` seconds.

        Returns:
            Whether the flag is up.
        """
        ...

    async def wait_async(self) -> None:
        """Wait in a task until the flag is up; cancellable."""
        ...
