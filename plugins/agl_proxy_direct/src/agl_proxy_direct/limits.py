"""Budgets and rate limits of rollouts."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agl_proxy_direct.errors import CallError

__all__ = ["Limits", "RolloutLimits"]

_ROLLOUTS: Final = 65_536
_FINAL: Final = (b"x-should-retry", b"false")
"""Stops OpenAI's SDK from retrying; its ``_should_retry`` reads this header."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of one rollout, over all its attempts. None is no limit."""

    calls: int | None = None
    """Model calls in all."""
    tokens: int | None = None
    """Tokens in all, of prompts and responses. The call that exceeds it is the last one."""
    calls_per_minute: float | None = None
    """Rate of calls. Bursts of up to ten seconds' worth are allowed."""


@dataclass(slots=True)
class _Usage:
    calls: int = 0
    tokens: int = 0
    allowance: float = 0.0
    at: float = 0.0


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

    def admit(self, rollout_id: str) -> None:
        """Count a call.

        Raises:
            CallError: 429, a limit is reached; with ``retry-after`` if waiting helps.
        """
        if self._none:
            return
        limits, used = self._limits, self._of(rollout_id)
        if limits.calls is not None and used.calls >= limits.calls:
            raise _budget_exceeded(f"{limits.calls} model calls")
        if limits.tokens is not None and used.tokens >= limits.tokens:
            raise _budget_exceeded(f"{limits.tokens} tokens")
        if limits.calls_per_minute is not None:
            self._take(used, limits.calls_per_minute / 60)
        used.calls += 1

    def add_tokens(self, rollout_id: str, tokens: int) -> None:
        """Count the tokens of a finished call."""
        if not self._none:
            self._of(rollout_id).tokens += tokens

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
