"""Options of the strategy for Ray."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agl_core.plugins import ComponentConfig

__all__ = ["RayConfig"]


class RayConfig(ComponentConfig):
    """Options of :class:`~agl_exec_ray.RayExecutionStrategy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"n_runners", "server_port"})

    address: str | None = Field(default=None, kw_only=False)
    """Address of the cluster, ``host:port``. None takes the connection of this process, else the
    cluster of ``RAY_ADDRESS`` or of this machine, and else starts one on this machine. ``local``
    always starts one."""
    n_runners: int = Field(default=1, ge=1)
    """Number of runners; with ``min_runners``, the largest number."""
    runners_per_actor: int = Field(default=1, ge=1)
    """Runners in one actor, which is a process: each has a thread and an event loop of its own."""
    num_cpus: float = Field(default=1.0, ge=0)
    """CPUs that Ray reserves for each actor; may be a fraction, for agents that mostly wait."""
    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each actor, for agents that use one themselves."""
    memory: int | None = Field(default=None, gt=0)
    """Memory that Ray reserves for each actor, in bytes."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom resources for each actor, such as ``{"runners": 1}`` for the nodes that have it."""
    scheduling_strategy: Literal["SPREAD", "DEFAULT"] = "SPREAD"
    """``SPREAD`` divides the actors between nodes; ``DEFAULT`` fills one node after the other."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Environment of the actors, as Ray defines it: ``working_dir``, ``py_modules``, ``pip``,
    ``env_vars``, …"""
    init: dict[str, Any] = Field(default_factory=dict)
    """More arguments of ``ray.init``, such as ``num_cpus`` of a cluster that it starts."""
    max_restarts: int = Field(default=3, ge=0)
    """Replacements of each actor that died (killed, out of memory, its node lost) without a
    finished attempt in between."""
    min_runners: int | None = Field(default=None, ge=0)
    """Number of runners that are kept without work; more are started as rollouts wait. None keeps
    all of them for the whole run."""
    rollouts_per_runner: int = Field(default=1, ge=1)
    """With ``min_runners``: the number of open rollouts for which one runner is kept. A good value
    is the runners' ``concurrency``."""
    idle_timeout: float = Field(default=60.0, ge=0)
    """With ``min_runners``: seconds with too many runners until they are ended."""
    algorithm: Literal["driver", "actor"] = "driver"
    """Where the algorithm runs: in this process, or as an actor of the cluster."""
    algorithm_num_cpus: float = Field(default=1.0, ge=0)
    """CPUs that Ray reserves for the algorithm's actor."""
    algorithm_num_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for the algorithm's actor."""
    algorithm_resources: dict[str, float] = Field(default_factory=dict)
    """Custom resources for the algorithm's actor."""
    server_host: str | None = None
    """The interface that the store server listens on. None reads ``AGL_SERVER_HOST``, else takes
    this node's address in the cluster, or loopback for a cluster that this run started."""
    server_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the server. None reads ``AGL_SERVER_PORT``, else takes a free one."""
    graceful_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for algorithm and runners to end after the stop event, in seconds."""
    terminate_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for actors that were killed, in seconds."""
    reconnect_timeout: float = Field(default=60.0, ge=0)
    """Longest wait of runners for a lost server, in seconds."""

    @model_validator(mode="after")
    def _at_most_all_runners_without_work(self) -> Self:
        if self.min_runners is not None and self.min_runners > self.n_runners:
            raise ValueError("min_runners is larger than n_runners")
        return self
