"""Options of the runner."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig
from agl_core.tracer import Tracer

HeartbeatMode = Literal["thread", "asyncio"]


class AgentRunnerConfig(ComponentConfig):
    """Options of :class:`~agl_runner.LitAgentRunner`."""

    injects: ClassVar[frozenset[str]] = frozenset({"tracer", "max_rollouts", "concurrency"})

    tracer: Tracer = Field(kw_only=False, exclude=True)
    """Records the agents' traces; shared by all workers of the process."""
    max_rollouts: int | None = Field(default=None, ge=0, strict=True, kw_only=False)
    """Number of rollouts after which ``iter`` ends; None: no limit."""
    poll_interval: float = Field(default=5.0, kw_only=False)
    """Longest time in seconds that one call to the store waits for work, and the pause after a
    failed call. New work is claimed at once, not at the next poll."""
    heartbeat_interval: float = Field(default=10.0, kw_only=False)
    """Seconds between heartbeats; 0 or less: none, and then a runner does not notice that its
    rollout was cancelled. A named run takes a worker that is silent for a minute for dead, and
    repeats its attempt: choose less than a minute there."""
    interval_jitter: float = Field(default=0.5, kw_only=False)
    """Largest random change of these two intervals, in seconds."""
    heartbeat_launch_mode: HeartbeatMode = Field(default="thread", kw_only=False)
    """Where heartbeats are sent from: a thread of their own, or the event loop of the rollouts."""
    heartbeat_include_gpu: bool = Field(default=False, kw_only=False)
    """Whether heartbeats list the machine's GPUs."""
    cancel_grace: float = 2.0
    """Seconds that a stopped async agent gets to end before it is abandoned."""
    finish_timeout: float = 300.0
    """Seconds during which writing an attempt's final status is retried: as long as a store's
    client waits for its server, so that no attempt stays open after an outage that its spans
    outlived. A result waits as long for a store that is full. After a cancellation it is 5 s at
    most."""
    concurrency: int | None = Field(default=None, ge=1, strict=True)
    """Largest number of rollouts that ``iter`` runs at a time. None: 1, or 8 per core and at most
    64 of an agent that declares ``concurrent``."""
