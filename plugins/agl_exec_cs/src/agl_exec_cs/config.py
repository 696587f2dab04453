"""Options of the client-server strategy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ClientServerConfig"]


class ClientServerConfig(BaseModel):
    """Options of :class:`~agl_exec_cs.client_server.ClientServerExecutionStrategy`."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["algorithm", "runner", "both"] | None = Field(
        default=None, description="Which part this process plays"
    )
    server_host: str | None = Field(
        default=None, description="Where the store server listens, or where runners find it"
    )
    server_port: int | None = Field(
        default=None, ge=0, le=65535, description="Its port; 0 takes a free one"
    )
    n_runners: int = Field(default=1, ge=1, description="Number of runner processes started here")
    graceful_timeout: float = Field(
        default=10.0, ge=0, description="Seconds to end after the stop event"
    )
    terminate_timeout: float = Field(
        default=10.0, ge=0, description="Seconds per step: interrupt, terminate, kill"
    )
    main_process: Literal["algorithm", "runner"] = Field(
        default="algorithm", description="Which side runs in this process"
    )
    managed_store: bool | None = Field(
        default=None, description="Serve the store; else hand it to both sides as it is"
    )
    allowed_exit_codes: tuple[int, ...] = Field(
        default=(0, -15), description="Exit codes of processes that are no failure"
    )
    start_method: Literal["fork", "forkserver", "spawn"] | None = Field(
        default=None, description="How processes start; the platform's default"
    )
    max_restarts: int = Field(
        default=3, ge=0, description="How often each runner that died is replaced"
    )
    reconnect_timeout: float = Field(
        default=60.0, ge=0, description="Seconds that runners wait for a lost server"
    )
