"""The simulation: a loop over events in the order of their times.

Model calls share the servers: up to the limit each runs at full speed, beyond it all run slower by
the same factor. So all calls progress alike, and a call ends when the common progress has reached
the call's own amount. That makes a call one entry in a heap, and the arrival of another call does
not touch the calls under way. Servers of one kind with balanced load are one server of the sum of
their limits.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, TypeVar

from agl_core.errors import InvalidArgumentError
from agl_simulate.cluster import Cluster, Prediction
from agl_simulate.workload import Workload

__all__ = ["simulate"]

T = TypeVar("T")
_UPDATED: Final = -1
"""In place of a runner's number: the end of an update. The next is an arrival."""
_ARRIVAL: Final = -2
_DRAWN: Final = 4096
"""Records drawn at a time: one call per record would be slower."""


def simulate(
    workload: Workload,
    cluster: Cluster,
    *,
    rollouts: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Prediction:
    """Simulate a cluster until a number of rollouts has ended.

    Args:
        workload: The recorded work of rollouts.
        cluster: The cluster.
        rollouts: How many rollouts.
        seed: Of the random draws; the same seed gives the same result.
        progress: Called every few events with the number of rollouts that have ended since.

    Raises:
        InvalidArgumentError: The workload is empty, or a number is not positive.
    """
    if not workload.profiles:
        raise InvalidArgumentError("the workload has no attempts")
    numbers = {"runners": cluster.runners, "servers": cluster.servers, "rollouts": rollouts}
    for name, number in numbers.items():
        if number < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, not {number}")
    return _Simulation(workload, cluster, rollouts, seed, progress).run()


class _Simulation:
    """One simulation. A runner is a number; ``steps[runner]`` is what its rollout does."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rollouts: int,
        seed: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._rng = random.Random(seed)
        self._cluster = cluster
        self._rollouts = rollouts
        self._progress = progress
        self._max_attempts = workload.max_attempts
        self._profiles = self._draw([(tuple(p.steps), p.failed) for p in workload.profiles])
        self._turnarounds = self._draw(workload.turnarounds or (0.0,))
        self._updates = self._draw(workload.updates or (0.0,))
        self._limit = math.inf
        if workload.server_limit is not None:
            self._limit = workload.server_limit * cluster.servers
        self._store_seconds = 1.0 / cluster.store_limit if cluster.store_limit else 0.0

        self._now = 0.0
        self._agents: list[tuple[float, int]] = []
        """By time: runners whose agents work until then, and the trainer."""
        self._steps: list[tuple[float, ...]] = [()] * cluster.runners
        self._position = [0] * cluster.runners
        """Index of the step that the runner is at."""
        self._fails = [False] * cluster.runners
        self._tries = [0] * cluster.runners
        self._free = list(range(cluster.runners - 1, -1, -1))
        self._queue: deque[tuple[float, int]] = deque()
        """When a rollout was enqueued, and its attempts so far."""
        self._waits = array("d")
        self._enqueued = self._ended = self._failed = self._attempts = self._calls = 0
        self._reported = self._longest_queue = 0
        self._runner_seconds = 0.0
        self._store_free = 0.0

        self._left_in_batch = 0
        self._collected = 0
        """Batches that wait for the trainer."""
        self._trainer_is_free = True
        self._weights: deque[int] = deque()
        """The version of the weights of each batch that is not trained on yet."""
        self._version = self._updates_begun = self._staleness = 0
        self._training_seconds = 0.0

    def _draw(self, records: Sequence[T]) -> Iterator[T]:
        """Yield random records for ever."""
        while True:
            yield from self._rng.choices(records, k=_DRAWN)

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> Prediction:
        limit, steps, position, agents = self._limit, self._steps, self._position, self._agents
        proxy_limit = self._cluster.proxy_limit
        proxy_seconds = 1.0 / proxy_limit if proxy_limit else 0.0
        proxy_free = 0.0
        at_proxy = [False] * self._cluster.runners
        calls: list[tuple[float, int]] = []  # by the progress at which they end
        progress = 0.0
        now = used_seconds = idle_seconds = 0.0
        infinity = math.inf
        self._begin()
        while True:
            count = len(calls)
            slowdown = count / limit if count > limit else 1.0
            call_end = now + (calls[0][0] - progress) * slowdown if count else infinity
            agent_end = agents[0][0] if agents else infinity
            if call_end <= agent_end:
                if call_end == infinity:
                    break
                used_seconds += (call_end - now) * count / slowdown
                now = call_end
                progress, runner = heappop(calls)
                position[runner] += 1
                heappush(agents, (now + steps[runner][position[runner]], runner))
                continue
            if count:
                used_seconds += (agent_end - now) * count / slowdown
                progress += (agent_end - now) / slowdown
            else:
                idle_seconds += agent_end - now
            now, runner = heappop(agents)
            if runner < 0 or position[runner] + 1 == len(steps[runner]):
                self._now = now
                self._happened(runner)
                continue
            if proxy_seconds and not at_proxy[runner]:
                proxy_free = max(proxy_free, now) + proxy_seconds
                at_proxy[runner] = True
                heappush(agents, (proxy_free, runner))
                continue
            at_proxy[runner] = False
            position[runner] += 1
            heappush(calls, (progress + steps[runner][position[runner]], runner))
        if self._progress is not None:
            self._progress(self._ended - self._reported)
        seconds = now or infinity
        made = self._calls
        return Prediction(
            rollouts=self._ended,
            failed=self._failed,
            attempts=self._attempts,
            calls=made,
            seconds=now,
            runners_busy=self._runner_seconds / (seconds * self._cluster.runners),
            servers_busy=None if limit == infinity else used_seconds / (seconds * limit),
            servers_idle=idle_seconds / seconds,
            proxy_busy=made * proxy_seconds / seconds if proxy_seconds else None,
            store_busy=self._attempts * self._store_seconds / seconds
            if self._store_seconds
            else None,
            trainer_busy=self._training_seconds / seconds,
            wait_mean=sum(self._waits) / len(self._waits),
            wait_p95=sorted(self._waits)[int(len(self._waits) * 0.95)],
            longest_queue=self._longest_queue,
            staleness=self._staleness / self._updates_begun if self._updates_begun else 0.0,
            cost=self._cost(now),
        )

    def _cost(self, seconds: float) -> float | None:
        prices = self._cluster.prices
        if not prices:
            return None
        per_hour = self._cluster.runners * prices.get("runner", 0.0) + prices.get("trainer", 0.0)
        per_hour += self._cluster.servers * prices.get("server", 0.0)
        return per_hour * seconds / 3600

    # -- rollouts --------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._cluster.mode != "open":
            self._enqueue_batch()
        elif self._cluster.arrivals_per_second:
            self._arrive()
        else:
            self._enqueue(self._rollouts)

    def _happened(self, runner: int) -> None:
        """Handle what is not a model call: the end of an attempt or update, or an arrival."""
        if runner == _UPDATED:
            self._end_update()
        elif runner == _ARRIVAL:
            self._arrive()
        else:
            self._end_attempt(runner)

    def _arrive(self) -> None:
        self._enqueue(1)
        if self._enqueued < self._rollouts:
            wait = self._rng.expovariate(self._cluster.arrivals_per_second or math.inf)
            heappush(self._agents, (self._now + wait, _ARRIVAL))

    def _enqueue(self, count: int) -> None:
        self._enqueued += count
        self._queue.extend([(self._now, 0)] * count)
        self._longest_queue = max(self._longest_queue, len(self._queue))
        while self._queue and self._free:
            self._claim(self._free.pop(), self._now)

    def _claim(self, runner: int, since: float) -> None:
        """Give a runner the head of the queue; it can begin at ``since``."""
        enqueued, tried = self._queue.popleft()
        steps, self._fails[runner] = next(self._profiles)
        self._steps[runner] = steps
        self._tries[runner] = tried + 1
        self._position[runner] = 0
        self._attempts += 1
        self._calls += len(steps) // 2
        # The store serves one claim after the other.
        self._store_free = max(self._store_free, since) + self._store_seconds
        began = self._store_free
        self._waits.append(began - enqueued)
        self._runner_seconds -= began
        heappush(self._agents, (began + steps[0], runner))

    def _end_attempt(self, runner: int) -> None:
        self._runner_seconds += self._now
        if self._fails[runner] and self._tries[runner] < self._max_attempts:
            self._queue.append((self._now, self._tries[runner]))
        else:
            self._ended += 1
            self._failed += self._fails[runner]
            self._left_in_batch -= 1
            if self._left_in_batch == 0:
                self._collected += 1
                if self._trainer_is_free:
                    self._begin_update()
            if self._progress is not None and self._ended - self._reported >= _DRAWN:
                self._progress(self._ended - self._reported)
                self._reported = self._ended
        if self._queue:
            self._claim(runner, self._now + next(self._turnarounds))
        else:
            self._free.append(runner)

    # -- updates ---------------------------------------------------------------------------------

    def _enqueue_batch(self) -> None:
        left = self._rollouts - self._enqueued
        size = min(self._cluster.batch or left, left)
        if size:
            self._left_in_batch = size
            self._weights.append(self._version)
            self._enqueue(size)

    def _begin_update(self) -> None:
        """Learn from the collected batch; with overlap, the next one begins now."""
        self._collected -= 1
        self._trainer_is_free = False
        self._updates_begun += 1
        self._staleness += self._version - self._weights.popleft()
        seconds = next(self._updates)
        self._training_seconds += seconds
        heappush(self._agents, (self._now + seconds, _UPDATED))
        if self._cluster.mode == "overlap":
            self._enqueue_batch()

    def _end_update(self) -> None:
        self._version += 1
        self._trainer_is_free = True
        if self._collected:
            self._begin_update()
        elif self._cluster.mode == "sync":
            self._enqueue_batch()
