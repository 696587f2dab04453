"""What one rollout may use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agl_proxy_direct.failures import CallError

__all__ = ["Limits", "RolloutLimits"]

_ROLLOUTS: Final = 65_536
_FINAL: Final = (b"x-should-retry", b"false")
"""Keeps the official SDKs from trying again what cannot succeed."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """None is no limit. All attempts of a rollout count together."""

    calls: int | None = None
    """Model calls in all."""
    tokens: int | None = None
    """Tokens in all, of prompts and responses; the call that goes past it is the last one."""
    calls_per_minute: float | None = None
    """Rate of calls; short bursts of up to ten seconds' worth pass."""


@dataclass(slots=True)
class _Used:
    calls: int = 0
    tokens: int = 0
    allowance: float = 0.0
    at: float = 0.0


class Limits:
    """Counts what rollouts use. Belongs to one event loop.

    The least recently active of many thousand rollouts are forgotten.
    """

    def __init__(
        self, limits: RolloutLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._none = limits == RolloutLimits()
        self._used: OrderedDict[str, _Used] = OrderedDict()

    def admit(self, rollout_id: str) -> None:
        """Count a call, or refuse it.

        Raises:
            CallError: 429; with ``retry-after`` if waiting helps.
        """
        if self._none:
            return
        limits, used = self._limits, self._of(rollout_id)
        if limits.calls is not None and used.calls >= limits.calls:
            raise _spent(f"{limits.calls} model calls")
        if limits.tokens is not None and used.tokens >= limits.tokens:
            raise _spent(f"{limits.tokens} tokens")
        if limits.calls_per_minute is not None:
            self._take(used, limits.calls_per_minute / 60)
        used.calls += 1

    def spend(self, rollout_id: str, tokens: int) -> None:
        """Count the tokens of a finished call."""
        if not self._none:
            self._of(rollout_id).tokens += tokens

    def _take(self, used: _Used, per_second: float) -> None:
        """Take one from the token bucket."""
        now = self._clock()
        burst = max(1.0, 10 * per_second)
        used.allowance = min(burst, used.allowance + (now - used.at) * per_second)
        used.at = now
        if used.allowance < 1:
            wait = (1 - used.allowance) / per_second
            raise CallError(
                429,
                f"this rollout calls too often; try again in {wait:.1f} s",
                "rate_limited",
                ((b"retry-after", b"%d" % max(1, round(wait + 0.5))),),
            )
        used.allowance -= 1

    def _of(self, rollout_id: str) -> _Used:
        used = self._used.get(rollout_id)
        if used is None:
            used = self._used[rollout_id] = _Used(allowance=float("inf"), at=self._clock())
            if len(self._used) > _ROLLOUTS:
                self._used.popitem(last=False)
        else:
            self._used.move_to_end(rollout_id)
        return used


def _spent(what: str) -> CallError:
    return CallError(
        429, f"this rollout has used its budget of {what}", "budget_exceeded", (_FINAL,)
    )
