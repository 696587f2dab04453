"""The cluster to simulate, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Cluster", "Mode", "Prediction"]

Mode = Literal["sync", "overlap", "open"]
"""``sync``: a batch of rollouts, then an update, in turns. ``overlap``: the next batch runs during
the update, so its weights are one step off. ``open``: rollouts arrive by themselves; no updates."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster.

    Attributes:
        runners: Rollouts at a time.
        servers: Model servers.
        mode: How rollouts and updates follow each other.
        batch: Rollouts per batch; None: all at once, then one update.
        arrivals_per_second: For the mode ``open``; None: all rollouts are in the queue at first.
        proxy_limit: Most model calls per second that the proxy passes on; None: no limit.
        store_limit: Most rollouts per second that the store serves; None: no limit.
        prices: Price per hour of one ``runner``, one ``server``, and the ``trainer``.
    """

    runners: int
    servers: int = 1
    mode: Mode = "sync"
    batch: int | None = None
    arrivals_per_second: float | None = None
    proxy_limit: float | None = None
    store_limit: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result of a simulation. Shares are between 0 and 1.

    Attributes:
        rollouts: Rollouts that ended.
        failed: Those whose last attempt failed.
        attempts: Attempts.
        calls: Model calls.
        seconds: Time to the end of the last update.
        runners_busy: Share of the runners' time with a rollout.
        servers_busy: Share of the model servers' capacity that is used; None if it is not known.
        servers_idle: Share of the time without any model call.
        proxy_busy: Share of the proxy's limit that is used; None without a limit.
        store_busy: Share of the store's limit that is used; None without a limit.
        trainer_busy: Share of the time with an update.
        wait_mean: Mean seconds of a rollout in the queue.
        wait_p95: 95th percentile of these.
        longest_queue: Most rollouts in the queue.
        staleness: Mean number of updates between a rollout's weights and those it trains.
        cost: Price of the whole; None without prices.
    """

    rollouts: int
    failed: int
    attempts: int
    calls: int
    seconds: float
    runners_busy: float
    servers_busy: float | None
    servers_idle: float
    proxy_busy: float | None
    store_busy: float | None
    trainer_busy: float
    wait_mean: float
    wait_p95: float
    longest_queue: int
    staleness: float
    cost: float | None

    @property
    def rollouts_per_second(self) -> float:
        """The throughput."""
        return self.rollouts / self.seconds if self.seconds else 0.0
