"""What can be configured about the built-in strategies."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SharedMemoryConfig"]


class SharedMemoryConfig(BaseModel):
    """Options of :class:`~agl_core.execution._shared_memory.SharedMemoryExecutionStrategy`."""

    model_config = ConfigDict(extra="forbid")

    n_runners: int = Field(default=1, ge=1, description="Number of runner threads")
    main_thread: Literal["algorithm", "runner"] | None = Field(
        default=None, description="Which side the main thread runs"
    )
    join_timeout: float = Field(
        default=15.0, ge=0, description="Longest wait for the threads at the end, in seconds"
    )
    graceful_delay: float = Field(
        default=5.0, ge=0, description="Seconds from the stop event to the cancellation"
    )
    poll_interval: float = Field(default=0.05, description="Accepted for compatibility; not used")
    managed_store: bool | None = Field(
        default=None, description="Make the store thread-safe and run its watchdog"
    )
