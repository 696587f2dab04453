"""Protocols of datasets and stop events, and the life cycle of components with several workers."""

from __future__ import annotations

from typing import Any, Protocol, SupportsIndex, TypeVar, runtime_checkable

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Dataset(Protocol[T_co]):
    """Anything with a length and items by index; a list qualifies."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...
    def __len__(self) -> int: ...


class ParallelWorkerBase:
    """Life cycle of a component that several workers use.

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
    """A flag to wait for; the interface of :class:`threading.Event`, plus :meth:`wait_async`."""

    def set(self) -> None:
        """Set the flag and wake all waiters. Idempotent."""
        ...

    def clear(self) -> None:
        """Clear the flag."""
        ...

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, at most ``timeout`` seconds.

        Returns:
            Whether the flag is set.
        """
        ...

    async def wait_async(self) -> None:
        """Wait in a task until the flag is set; cancellable."""
        ...
