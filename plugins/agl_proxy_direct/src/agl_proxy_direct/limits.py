"""Budgets and rate limits of rollouts.

Calls of one rollout may run at the same time, and how many tokens one takes is known at its end. So
a call reserves the most that it may take, and what it took replaces that. A call whose most does
not fit into the rest of the budget waits for the calls before it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from agl_core.genai import Json
from agl_core.waits import Waits
from agl_proxy_direct.errors import CallError

__all__ = ["Limits", "Reservation", "RolloutLimits", "check_messages", "most_generated"]

logger = logging.getLogger(__name__)

_MAX_MESSAGES: Final = 100_000
"""Messages of a request. One costs 3 µs of the proxy's loop; a million tokens have fewer."""
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_ROLLOUTS: Final = 65_536
"""Rollouts whose use is counted, 10 MB; the one unused longest goes."""
_FINAL: Final = (b"x-should-retry", b"false")
"""Stops OpenAI's SDK from retrying; its ``_should_retry`` reads this header."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of one rollout, over all its attempts. None is no limit."""

    calls: int | None = None
    """Model calls in all."""
    tokens: int | None = None
    """Tokens in all, of prompts and responses. The call that exceeds it is the last one. Calls run
    at the same time as long as their prompts and their own limits (``max_tokens``) fit into what is
    left; a call without a limit of its own runs alone."""
    calls_per_minute: float | None = None
    """Rate of calls. Bursts of up to ten seconds' worth are allowed."""


@dataclass(slots=True)
class _Usage:
    calls: int = 0
    tokens: int = 0
    reserved: float = 0
    """Tokens that the running calls may take."""
    running: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call ends."""
    allowance: float = 0.0
    at: float = 0.0


class Reservation:
    """What a running call may take of its rollout's tokens.

    Args:
        used: The usage of its rollout.
        tokens: The most that the call may take.
    """

    def __init__(self, used: _Usage, tokens: float) -> None:
        self._used: _Usage | None = used
        self._tokens = tokens
        used.reserved += tokens
        used.running += 1

    def settle(self, tokens: int) -> None:
        """Count what the call took; only the first time."""
        used, self._used = self._used, None
        if used is None:
            return
        used.running -= 1
        # Nothing is reserved once nothing runs: an infinite amount cannot be taken away again.
        used.reserved = used.reserved - self._tokens if used.running else 0
        used.tokens += tokens
        used.settled.set()


class Limits:
    """Counts calls and tokens of rollouts. Belongs to one event loop.

    Beyond 65,536 rollouts the least recently active one is forgotten.
    """

    def __init__(
        self, limits: RolloutLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._none = limits == RolloutLimits()
        self._used: OrderedDict[str, _Usage] = OrderedDict()
        self._waits = Waits(logger.info)

    async def admit(self, rollout_id: str, most: float = math.inf) -> Reservation | None:
        """Count a call, and reserve its tokens once they fit.

        Args:
            rollout_id: The call's rollout.
            most: Tokens that the call may take at most.

        Returns:
            What to settle when the call has ended; None without a budget of tokens.

        Raises:
            CallError: 429, a limit is reached; with ``retry-after`` if waiting helps.
        """
        if self._none:
            return None
        limits, used = self._limits, self._of(rollout_id)
        if limits.calls is not None and used.calls >= limits.calls:
            raise _budget_exceeded(f"{limits.calls} model calls")
        if limits.tokens is None:
            self._count(used)
            return None
        while used.tokens < limits.tokens < used.tokens + used.reserved + most and used.running:
            used.settled.clear()
            with self._waits.on(
                lambda: (
                    f"calls of rollout {rollout_id} that may use up its {limits.tokens} tokens: "
                    "the next one does not fit beside them"
                )
            ):
                await used.settled.wait()
        if used.tokens >= limits.tokens:
            raise _budget_exceeded(f"{limits.tokens} tokens")
        if limits.calls is not None and used.calls >= limits.calls:
            raise _budget_exceeded(f"{limits.calls} model calls")
        self._count(used)
        return Reservation(used, most)

    def _count(self, used: _Usage) -> None:
        if self._limits.calls_per_minute is not None:
            self._take(used, self._limits.calls_per_minute / 60)
        used.calls += 1

    def _take(self, used: _Usage, per_second: float) -> None:
        """Take one call from the token bucket."""
        now = self._clock()
        burst = max(1.0, 10 * per_second)
        used.allowance = min(burst, used.allowance + (now - used.at) * per_second)
        used.at = now
        if used.allowance < 1:
            wait = (1 - used.allowance) / per_second
            raise CallError(
                429,
                f"this rollout exceeds its rate of calls; try again in {wait:.1f} s",
                "rate_limited",
                ((b"retry-after", b"%d" % max(1, round(wait + 0.5))),),
            )
        used.allowance -= 1

    def _of(self, rollout_id: str) -> _Usage:
        used = self._used.get(rollout_id)
        if used is None:
            used = self._used[rollout_id] = _Usage(allowance=float("inf"), at=self._clock())
            if len(self._used) > _ROLLOUTS:
                self._used.popitem(last=False)
        else:
            self._used.move_to_end(rollout_id)
        return used


def _budget_exceeded(what: str) -> CallError:
    return CallError(
        429, f"this rollout has used its budget of {what}", "budget_exceeded", (_FINAL,)
    )


def most_generated(request: Json, choices: int) -> float:
    """Return how many tokens the response may have. A prompt has no more tokens than bytes.

    Args:
        request: The request.
        choices: How many choices it asks for.
    """
    given = [request[name] for name in _LIMITS if isinstance(request.get(name), int)]
    return max(given) * choices if given else math.inf


def check_messages(request: Json) -> None:
    """Refuse conversations whose messages would hold up all other calls.

    Raises:
        CallError: 400.
    """
    for name in ("messages", "input"):
        found: Any = request.get(name)
        if isinstance(found, list):
            turns = cast("list[Any]", found)
            # A batch of texts to embed is longer.
            if len(turns) > _MAX_MESSAGES and isinstance(turns[0], dict | list):
                message = f"{name} has more than {_MAX_MESSAGES:,} messages"
                raise CallError(400, message, "too_many_messages")
