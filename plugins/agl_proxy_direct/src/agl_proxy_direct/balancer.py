"""Which backend takes a call: health, stickiness, least in flight, limits and fair waiting.

All of it belongs to the event loop that serves the proxy; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from agl_proxy_direct.backends import Backend
from agl_proxy_direct.failures import CallError

__all__ = ["Balancer", "Member"]

_EJECT_AFTER: Final = 3
"""Failures in a row after which a backend is left alone for a while."""
_FIRST_EJECTION: Final = 1.0
_LONGEST_EJECTION: Final = 60.0
_STICKY_ROLLOUTS: Final = 65_536


@dataclass(eq=False, slots=True)
class Member:
    """A backend and how it is doing."""

    backend: Backend
    version: str | None
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    ejected_until: float = 0.0
    calls: int = 0

    def free(self) -> bool:
        limit = self.backend.max_parallel
        return limit is None or self.in_flight < limit


class _Pool:
    """The backends of one model, and the calls that wait for one of them.

    Waiting calls are served in turns of rollouts, so that one rollout with a hundred calls delays
    another's single call by one.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._waiting = 0
        """Calls that wait, or whose turn it is and that have not run since."""

    def waiting(self) -> int:
        return self._waiting

    def free(self) -> bool:
        return any(member.free() for member in self.members)

    async def turn(self, rollout: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(rollout, deque()).append(future)
        self._waiting += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._forget(rollout, future)
            else:
                self.wake()  # it was this call's turn: the next one takes it
            raise
        finally:
            self._waiting -= 1

    def _forget(self, rollout: str, future: asyncio.Future[None]) -> None:
        queue = self._turns[rollout]
        queue.remove(future)
        if not queue:
            del self._turns[rollout]

    def wake(self) -> None:
        """Let the next waiting call look again."""
        if not self._turns:
            return
        rollout, queue = self._turns.popitem(last=False)
        queue.popleft().set_result(None)
        if queue:
            self._turns[rollout] = queue  # to the end: the other rollouts come first

    def wake_all(self) -> None:
        while self._turns:
            self.wake()


class Balancer:
    """Gives calls to backends.

    Args:
        backends: Who there is.
        queue_timeout: Seconds that a call waits for a free backend, or for the end of a pause.
        clock: Seconds, monotonic.
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
        self._clock = clock
        self._paused = False
        self._idle: asyncio.Event | None = None
        self._in_flight = 0
        self._versions: dict[str | None, str] = {}
        """By model; under None, what holds for models that came later."""
        self.update(backends)

    # -- control ---------------------------------------------------------------------------------

    @property
    def models(self) -> list[str]:
        """Names of the models served, in the order of the list."""
        return [name for name, pool in self._pools.items() if pool.members]

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

        Those that stay keep their state; calls on those that go end as they would have.
        """
        known = {member.backend: member for member in self.members()}
        for pool in self._pools.values():
            pool.members = []
        for backend in backends:
            pool = self._pools.setdefault(backend.model_name, _Pool())
            version = (
                self._versions.get(backend.model_name)
                or backend.version
                or self._versions.get(None)
            )
            pool.members.append(known.get(backend) or Member(backend, version))
        kept = {id(member) for member in self.members()}
        for key in [key for key, member in self._sticky.items() if id(member) not in kept]:
            del self._sticky[key]
        for pool in self._pools.values():
            pool.wake_all()
        self._pools = {
            name: pool for name, pool in self._pools.items() if pool.members or pool.waiting()
        }

    def set_version(self, version: str, model: str | None = None) -> None:
        """Say which weights answer from now on, on all models or on one."""
        self._versions[model] = version
        for name, pool in self._pools.items():
            if model in (None, name):
                self._versions[name] = version
                for member in pool.members:
                    member.version = version

    def pause(self) -> None:
        """Let new calls wait; those in flight go on."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        for pool in self._pools.values():
            pool.wake_all()

    async def idle(self) -> None:
        """Return when no call is in flight."""
        while self._in_flight:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    # -- calls -----------------------------------------------------------------------------------

    def choices(self, model: str) -> int:
        """Return how many backends a model has."""
        pool = self._pools.get(model)
        return len(pool.members) if pool else 0

    async def acquire(self, model: str, rollout: str, without: Collection[Member] = ()) -> Member:
        """Return the backend for a call, which must be given back with :meth:`release`.

        Args:
            model: Name of the model.
            rollout: Whose call it is: it goes where the rollout's last call went, whose prefix
                cache knows the conversation.
            without: Backends that failed this call before.

        Raises:
            CallError: No such model, or none of its backends was free in time.
        """
        deadline = self._clock() + self._queue_timeout
        waited = False
        while True:
            pool = self._pools.get(model)
            if pool is None or not pool.members:
                known = ", ".join(self.models) or "none"
                raise CallError(
                    404, f"no model {model!r} here; there is: {known}", "model_not_found"
                )
            # Who comes new stands behind those who wait, or nobody would ever wait fairly.
            if not self._paused and (waited or not pool.waiting()):
                member = self._choose(pool, model, rollout, without)
                if member is not None:
                    member.in_flight += 1
                    member.calls += 1
                    self._in_flight += 1
                    if pool.waiting() and pool.free():
                        pool.wake()
                    return member
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await pool.turn(rollout)
            except TimeoutError:
                why = "is paused" if self._paused else "was not free"
                raise CallError(
                    503,
                    f"model {model!r} {why} for {self._queue_timeout:g} s; try again later",
                    "queue_timeout",
                    ((b"retry-after", b"1"),),
                ) from None
            waited = True

    def _choose(
        self, pool: _Pool, model: str, rollout: str, without: Collection[Member]
    ) -> Member | None:
        open_ = [m for m in pool.members if m not in without] or pool.members
        now = self._clock()
        # With every backend ejected, trying one beats refusing the call.
        healthy = [m for m in open_ if m.ejected_until <= now] or open_
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
            member: What :meth:`acquire` returned.
            failed: Whether the backend was at fault; None if the call says nothing about it.
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
