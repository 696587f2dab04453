"""Load balancing: health, sticky rollouts, fewest calls in flight, limits, and a fair queue.

Nothing here is thread-safe; everything runs in the event loop that serves the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from agl_core.waits import Waits
from agl_proxy_direct.backends import Backend
from agl_proxy_direct.errors import CallError

__all__ = ["Balancer", "Member"]

logger = logging.getLogger(__name__)

_EJECT_AFTER: Final = 3
"""Consecutive failures after which a backend gets no calls for a while."""
_FIRST_EJECTION: Final = 1.0
"""Seconds without calls; doubles with each further failure."""
_LONGEST_EJECTION: Final = 60.0
"""Seconds: a backend that is back gets calls within a minute."""
_STICKY_ROLLOUTS: Final = 65_536
"""Rollouts whose backend is remembered, 10 MB; the one unused longest goes."""
_ANY_MODEL: Final = "*"
"""Model name of the backends that answer calls for any model without backends of its own."""


@dataclass(eq=False, slots=True)
class Member:
    """A backend and its state."""

    backend: Backend
    version: str | None
    in_flight: int = 0
    failures: int = 0
    """Consecutive failures."""
    ejected_until: float = 0.0
    calls: int = 0

    def free(self) -> bool:
        limit = self.backend.max_parallel
        return limit is None or self.in_flight < limit


class _Pool:
    """The backends of one model, and a fair queue of calls that wait for one.

    Rollouts take turns: a rollout with a hundred waiting calls delays another rollout's single call
    by one call.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._turns: OrderedDict[str, deque[asyncio.Future[int]]] = OrderedDict()
        self._waiting = 0
        """Number of calls that wait, or were woken and have not run yet."""
        self._woken = 0
        """Number of those that were woken and have not run yet."""

    def waiting(self) -> int:
        return self._waiting

    def is_open(self) -> bool:
        """Whether a new call may look for a backend: none that waits can use what is free."""
        return not self._woken

    def free(self) -> bool:
        return any(member.free() for member in self.members)

    async def wait_turn(self, rollout: str) -> int:
        """Wait for a turn; return how many calls may pass it on."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(rollout, deque()).append(future)
        self._waiting += 1
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._leave_queue(rollout, future)
            else:
                self.wake()  # a cancelled call passes its turn to the next one
            raise
        finally:
            self._waiting -= 1
            self._woken -= not future.cancelled()

    def _leave_queue(self, rollout: str, future: asyncio.Future[int]) -> None:
        queue = self._turns.get(rollout, deque())
        if future in queue:
            queue.remove(future)
            if not queue:
                del self._turns[rollout]

    def wake(self, passes: int | None = None) -> None:
        """Wake the next waiting call, which then looks for a free backend.

        Args:
            passes: How many calls may pass the turn on, if they cannot use what is free; by
                default all that wait.
        """
        while self._turns:
            rollout, queue = self._turns.popitem(last=False)
            future = queue.popleft()
            if queue:
                self._turns[rollout] = queue  # at the end, behind the other rollouts
            if not future.done():  # a cancelled call that has not run yet is still in the queue
                self._woken += 1
                future.set_result(self._waiting if passes is None else passes)
                return

    def wake_all(self) -> None:
        while self._turns:
            self.wake()


class Balancer:
    """Chooses a backend for each call.

    Args:
        backends: The backends to start with.
        queue_timeout: Longest wait of a call for a free backend or for the end of a pause, in
            seconds.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        backends: Iterable[Backend] = (),
        *,
        queue_timeout: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools: dict[str, _Pool] = {}
        self._sticky: OrderedDict[tuple[str, str], Member] = OrderedDict()
        self._queue_timeout = queue_timeout
        self._waits = Waits(logger.info)
        self._clock = clock
        self._paused = False
        self._idle: asyncio.Event | None = None
        self._in_flight = 0
        self._versions: dict[str | None, str] = {}
        """Version by model; under None, the version of models added later."""
        self.update(backends)

    # -- control ---------------------------------------------------------------------------------

    @property
    def models(self) -> list[str]:
        """Names of the models served, in the order of the list."""
        return [name for name, pool in self._pools.items() if pool.members and name != _ANY_MODEL]

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def paused(self) -> bool:
        return self._paused

    def members(self) -> list[Member]:
        return [member for pool in self._pools.values() for member in pool.members]

    def waiting(self) -> int:
        return sum(pool.waiting() for pool in self._pools.values())

    def update(self, backends: Iterable[Backend]) -> None:
        """Replace the backends at once.

        Backends in both lists keep their state. Calls on removed backends run to their end.
        """
        known: defaultdict[Backend, deque[Member]] = defaultdict(deque)
        for member in self.members():
            known[member.backend].append(member)
        for pool in self._pools.values():
            pool.members = []
        for backend in backends:
            pool = self._pools.setdefault(backend.model_name, _Pool())
            version = (
                self._versions.get(backend.model_name)
                or backend.version
                or self._versions.get(None)
            )
            same = known[backend]  # several equal entries are several members
            pool.members.append(same.popleft() if same else Member(backend, version))
        kept = {id(member) for member in self.members()}
        for key in [key for key, member in self._sticky.items() if id(member) not in kept]:
            del self._sticky[key]
        for pool in self._pools.values():
            pool.wake_all()
        self._pools = {
            name: pool for name, pool in self._pools.items() if pool.members or pool.waiting()
        }

    def set_version(self, version: str, model: str | None = None) -> None:
        """Set the version of the weights that answer from now on, of all models or of one."""
        if model is None:
            self._versions.clear()  # also of models that are away
        self._versions[model] = version
        for name, pool in self._pools.items():
            if model in (None, name):
                self._versions[name] = version
                for member in pool.members:
                    member.version = version

    def pause(self) -> None:
        """Make new calls wait. Calls in flight continue."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        for pool in self._pools.values():
            pool.wake_all()

    async def wait_idle(self) -> None:
        """Return when no call is in flight."""
        while self._in_flight:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    # -- calls -----------------------------------------------------------------------------------

    def count_backends(self, model: str) -> int:
        """Return the number of a model's backends."""
        pool = self._pool(model)
        return len(pool.members) if pool else 0

    def _pool(self, model: str) -> _Pool | None:
        pool = self._pools.get(model)
        # A pool without members is there only for the calls that still wait in it.
        return pool if pool is not None and pool.members else self._pools.get(_ANY_MODEL)

    async def acquire(self, model: str, rollout: str, without: Collection[Member] = ()) -> Member:
        """Return the backend for a call, which must be given back with :meth:`release`.

        Args:
            model: Name of the model.
            rollout: Rollout of the call. It goes to the backend of the rollout's last call, whose
                prefix cache holds the conversation.
            without: Backends that already failed this call.

        Raises:
            CallError: 404, there is no such model; 503, no backend was free in time.
        """
        deadline = self._clock() + self._queue_timeout
        waited, passes = False, 0
        while True:
            pool = self._pool(model)
            if pool is None or not pool.members:
                known = ", ".join(self.models) or "none"
                raise CallError(
                    404, f"no model {model!r} is served here; served: {known}", "model_not_found"
                )
            # New calls queue behind those that can use what is free; otherwise these starve.
            if not self._paused and (waited or pool.is_open()):
                member = self._choose(pool, model, rollout, without)
                if member is not None:
                    member.in_flight += 1
                    member.calls += 1
                    self._in_flight += 1
                    if pool.waiting() and pool.free():
                        pool.wake()
                    return member
                if passes > 1 and pool.free():  # what is free has failed this call
                    pool.wake(passes - 1)
            try:
                with self._waits.on(partial(self._what_is_waited_for, pool, model)):
                    async with asyncio.timeout(deadline - self._clock()):
                        passes = await pool.wait_turn(rollout)
            except TimeoutError:
                why = "is paused" if self._paused else "was not free"
                raise CallError(
                    503,
                    f"model {model!r} {why} for {self._queue_timeout:g} s; try again later",
                    "queue_timeout",
                    ((b"retry-after", b"1"),),
                ) from None
            waited = True

    def _what_is_waited_for(self, pool: _Pool, model: str) -> str:
        if self._paused:
            return f"the end of a pause of the proxy: {pool.waiting()} calls of model {model!r}"
        return f"a free backend of model {model!r}: {pool.waiting()} calls"

    def _choose(
        self, pool: _Pool, model: str, rollout: str, without: Collection[Member]
    ) -> Member | None:
        untried = [m for m in pool.members if m not in without] or pool.members
        now = self._clock()
        # With every backend ejected, trying one is better than refusing the call.
        healthy = [m for m in untried if m.ejected_until <= now] or untried
        free = [m for m in healthy if m.free()]
        if not free:
            return None
        chosen = min(free, key=lambda m: (m.in_flight, m.calls)) if len(free) > 1 else free[0]
        if not rollout or len(pool.members) == 1:
            return chosen
        key = (model, rollout)
        last = self._sticky.get(key)
        if last is not None and last in free:
            chosen = last
        self._sticky[key] = chosen
        self._sticky.move_to_end(key)
        if len(self._sticky) > _STICKY_ROLLOUTS:
            self._sticky.popitem(last=False)
        return chosen

    def release(self, member: Member, *, failed: bool | None) -> None:
        """Give a backend back.

        Args:
            member: A backend from :meth:`acquire`.
            failed: Whether the backend was at fault; None if the call gives no evidence.
        """
        member.in_flight -= 1
        self._in_flight -= 1
        if failed:
            member.failures += 1
            if member.failures >= _EJECT_AFTER:
                pause = _FIRST_EJECTION * 2 ** min(member.failures - _EJECT_AFTER, 10)
                member.ejected_until = self._clock() + min(pause, _LONGEST_EJECTION)
        elif failed is False:
            member.failures, member.ejected_until = 0, 0.0
        if self._in_flight == 0 and self._idle is not None:
            self._idle.set()
        pool = self._pools.get(member.backend.model_name)
        if pool is not None and pool.waiting():
            pool.wake()
