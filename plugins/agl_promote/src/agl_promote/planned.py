"""The planned test: four looks at a finite list of tasks.

At each look the differences and two more, -1 and +1, are one sample of Student's t, as in
:mod:`agl_core.statistics`. The critical probabilities of the looks are those of O'Brien and Fleming
("A multiple testing procedure for clinical trials", Biometrics 35, 1979), constants from Jennison
and Turnbull ("Group Sequential Methods", 2000, table 2.3): strict at first, nearly those of one
test at the end. Between the looks nothing may be decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from agl_core.errors import InvalidArgumentError
from agl_core.statistics import t_quantile

__all__ = ["ALPHAS", "LOOKS", "looks_of", "planned_bound"]

LOOKS: Final = 4
"""The constants below are for this number."""

ALPHAS: Final = {0.05: 1.733, 0.025: 2.024, 0.005: 2.609}
"""Constants of O'Brien and Fleming for four looks, by the one-sided error."""


def looks_of(tasks: int) -> list[int]:
    """Return the numbers of pairs after which a list of tasks is looked at."""
    return sorted({math.ceil(tasks * look / LOOKS) for look in range(1, LOOKS + 1)})


def planned_bound(differences: Sequence[float], look: int, alpha: float) -> float:
    """Return what the mean difference is shown to be above at a look.

    Args:
        differences: Those of all pairs up to the look, each in [-1, 1].
        look: Number of the look, from 1 to 4.
        alpha: One-sided error of all looks together; a key of :data:`ALPHAS`.

    Raises:
        InvalidArgumentError: The error has no constant, or there is no such look.
    """
    if alpha not in ALPHAS or not 1 <= look <= LOOKS:
        known = ", ".join(map(str, ALPHAS))
        raise InvalidArgumentError(f"the planned test has errors of {known}, not {alpha}")
    values = [*differences, -1.0, 1.0]
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    error = math.sqrt(squares / (len(values) - 1) / len(values))
    probability = NormalDist().cdf(ALPHAS[alpha] * math.sqrt(LOOKS / look))
    return mean - t_quantile(probability, len(values) - 1) * error
