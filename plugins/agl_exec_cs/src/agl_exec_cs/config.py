"""Options of the client-server strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig

__all__ = ["ClientServerConfig", "Role"]

Role = Literal["algorithm", "runner", "both"]


class ClientServerConfig(ComponentConfig):
    """Options of :class:`~agl_exec_cs.ClientServerExecutionStrategy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"n_runners", "server_port"})

    role: Role | None = Field(default=None, kw_only=False)
    """The role of this process. None reads ``AGL_CURRENT_ROLE``, else ``both``."""
    server_host: str | None = Field(default=None, kw_only=False)
    """The interface that the store server listens on; for runners its host name, ``HOST:PORT`` or
    URL. None reads ``AGL_SERVER_HOST``, else this machine only."""
    server_port: int | None = Field(default=None, ge=0, le=65535, kw_only=False)
    """Port of the server; 0 takes a free one. None reads ``AGL_SERVER_PORT``, else 4747, or a free
    port if that one is taken and the role is ``both``."""
    n_runners: int = Field(default=1, ge=1)
    """Number of runner processes started here."""
    graceful_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for algorithm and runners to end after the stop event, in seconds."""
    terminate_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for a process after each further step (interrupt, terminate, kill), in
    seconds."""
    main_process: Literal["algorithm", "runner"] = "algorithm"
    """The bundle that this process runs in the role ``both``. ``runner`` is for debugging agents:
    it needs ``n_runners=1`` and leaves the store and the algorithm of this process unchanged."""
    managed_store: bool | None = None
    """Whether to serve the store; runners then use a client. False gives the store itself to
    algorithm and runners, which must be able to share it. None reads ``AGL_MANAGED_STORE``, else
    true."""
    allowed_exit_codes: Sequence[int] = (0, -15)
    """Exit codes that are not failures of a process that the end of the run interrupts."""
    start_method: Literal["fork", "forkserver", "spawn"] | None = None
    """How processes start; None takes the platform's default."""
    sync_agents: Literal["thread", "main_thread"] = "thread"
    """Where a runner calls a sync agent. ``main_thread``: in the main thread of its process, one
    rollout at a time, for libraries that work there only: ``signal.alarm`` of math-verify."""
    max_restarts: int = Field(default=3, ge=0)
    """Replacements of each runner process that died (killed, out of memory, crashed) without a
    finished attempt in between."""
    reconnect_timeout: float = Field(default=300.0, ge=0)
    """Longest wait of runners for a lost server, in seconds: what a supervisor needs to restart
    it."""
    connect_timeout: float | None = Field(default=None, ge=0)
    """With the role ``runner``: longest wait for a server that has not started yet, in seconds.
    None waits as long as it takes."""
    worker_seed: str | None = None
    """With the role ``runner``: a text that the worker ids are made from, so that whoever starts
    this process knows them. It differs between processes that run at a time. None draws ids."""
