"""Options of the strategy."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from agl_core.plugins import ComponentConfig


class SharedMemoryConfig(ComponentConfig):
    """Options of :class:`~agl_exec_shm.SharedMemoryExecutionStrategy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"n_runners"})

    n_runners: int = Field(default=1, ge=1, kw_only=False)
    """Number of runner threads."""
    main_thread: Literal["algorithm", "runner"] | None = Field(default=None, kw_only=False)
    """Bundle that runs in the main thread, which debuggers and some GUI and CUDA code need. None:
    the runner if there is one runner, else the algorithm."""
    join_timeout: float = Field(default=15.0, ge=0)
    """Longest wait for the threads after the stop event, in seconds."""
    graceful_delay: float = Field(default=5.0, ge=0)
    """Seconds from the stop event to the cancellation of a bundle, and again from there until its
    thread is abandoned. Abandoned threads are daemons."""
    poll_interval: float = 0.05
    """Accepted for compatibility; nothing polls."""
    managed_store: bool | None = None
    """Wrap the store so that it is thread-safe and no attempt stays open, and run its watchdog.
    None reads ``AGL_MANAGED_STORE``, else true."""

    @model_validator(mode="after")
    def _one_runner_in_the_main_thread(self) -> Self:
        if self.main_thread == "runner" and self.n_runners != 1:
            raise ValueError("main_thread='runner' needs n_runners=1")
        return self
