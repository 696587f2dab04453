"""How many model calls at a time the servers serve at full speed, from the times of calls."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from statistics import pstdev
from typing import Final

__all__ = ["Calls"]

Interval = tuple[float, float]

_TRIED: Final = 40
"""About how many limits are tried before the best one's neighbours."""


class Calls:
    """Model calls and how many ran at a time.

    Args:
        calls: Begin and end of each call, in seconds.
    """

    def __init__(self, calls: Sequence[Interval]) -> None:
        self._calls = calls
        changes = sorted([(begin, 1) for begin, _ in calls] + [(end, -1) for _, end in calls])
        self._times = [time for time, _ in changes]
        self._levels = list(accumulate(change for _, change in changes))
        self.most = max(self._levels, default=0)
        """Most calls at a time."""

    def lengths(self, limit: float | None) -> list[float]:
        """Return how long each call takes on servers that are not full, in seconds.

        Args:
            limit: How many calls at a time run at full speed; None for any number.
        """
        if limit is None:
            return [end - begin for begin, end in self._calls]
        shares = (min(1.0, limit / level) if level else 0.0 for level in self._levels)
        pairs = zip(self._times, self._times[1:], shares, strict=False)
        progress = [0.0, *accumulate((end - begin) * share for begin, end, share in pairs)]
        return [
            progress[bisect_left(self._times, end)] - progress[bisect_left(self._times, begin)]
            for begin, end in self._calls
        ]

    def limit(self) -> float | None:
        """Return how many calls at a time run at full speed; None if there were never more.

        The right limit explains why calls took longer when there were many: the lengths that it
        leaves scatter least. Calls differ by themselves, but not by how many there are.
        """
        unlimited = _scatter(self.lengths(None))
        if self.most < 2 or unlimited == 0.0:
            return None
        step = max(1, self.most // _TRIED)
        scatters = {n: _scatter(self.lengths(n)) for n in range(1, self.most, step)}
        best = min(scatters, key=scatters.__getitem__)
        for near in range(max(1, best - step + 1), min(self.most, best + step)):
            scatters[near] = _scatter(self.lengths(near))
        best = min(scatters, key=scatters.__getitem__)
        # The log-likelihood ratio of log-normal lengths has to exceed what BIC charges for one more
        # parameter: half of the logarithm of how many lengths there are.
        count = sum(end > begin for begin, end in self._calls)
        gain = count * math.log(unlimited / max(scatters[best], 1e-9 * unlimited))
        return float(best) if gain > math.log(count) / 2 else None


def _scatter(lengths: Sequence[float]) -> float:
    """Return the deviation of the lengths' logarithms: it does not depend on their unit."""
    return pstdev([math.log(length) for length in lengths if length > 0] or [0.0])
