"""A plan applied to pairs: pure, so that a promotion that was killed decides the same again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from agl_promote.betting import Wealth, gain_at_least
from agl_promote.plan import Plan
from agl_promote.planned import looks_of, planned_bound

__all__ = ["Decision", "Evidence", "Pair"]

_FUTILITY_ALPHA = 0.1
"""A wanted gain that is refuted with this error is not pursued. Stopping early never promotes."""


class Pair(NamedTuple):
    """One task, run with both at the same time.

    Attributes:
        champion: Mean reward with the champion.
        candidate: Mean reward with the candidate.
        guarded: Both means of what each guardrail looks at, by segment or name of the reward.
    """

    champion: float
    candidate: float
    guarded: Mapping[str, tuple[float, float]] = {}


class Decision(NamedTuple):
    """The state of the evidence.

    Attributes:
        kind: ``promote``; ``keep``: not shown, and more pairs will not come; ``undecided``: not
            shown yet.
        at_least: The gain is above this, with confidence 1 - alpha; at any time with the test
            ``anytime``.
        gain: Mean gain of the pairs.
        pairs: Number of pairs.
        guardrails: Of each segment or reward: the least change that is shown.
        why: In words.
    """

    kind: Literal["promote", "keep", "undecided"]
    at_least: float
    gain: float
    pairs: int
    guardrails: Mapping[str, float]
    why: str


class Evidence:
    """Takes pairs in the order of their enrolment and decides.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._null = plan.min_gain / plan.width
        self._margins = {rail.path: rail.margin / plan.width for rail in plan.guardrails}
        self._differences: list[float] = []
        self._total = 0.0
        self._crossed = False
        """Whether the gain was shown at some time; what was shown once stays so."""
        self._wealth = Wealth(self._null)
        wanted = plan.wanted_gain
        # Against "the gain is at least what is wanted": the same bet on the negative differences.
        self._doubt = None if wanted is None else Wealth(-wanted / plan.width)
        self._guarded: dict[str, tuple[Wealth, list[float]]] = {
            key: (Wealth(-self._margins[key.partition("=")[0]]), []) for key in plan.guarded
        }
        self._looks = looks_of(len(plan.tasks))
        self.decision = Decision("undecided", -plan.width, 0.0, 0, {}, "no pair yet")

    def add(self, pair: Pair) -> Decision:
        """Add the next pair; return the decision, which is final unless it is ``undecided``."""
        if self.decision.kind != "undecided":
            return self.decision
        width = self._plan.width
        difference = (pair.candidate - pair.champion) / width
        self._differences.append(difference)
        self._total += difference
        self._wealth.bet(difference)
        if self._doubt is not None:
            self._doubt.bet(-difference)
        for key, (champion, candidate) in pair.guarded.items():
            if key in self._guarded:
                wealth, found = self._guarded[key]
                wealth.bet((candidate - champion) / width)
                found.append((candidate - champion) / width)
        self.decision = self._anytime() if self._plan.test == "anytime" else self._planned()
        return self.decision

    def _anytime(self) -> Decision:
        self._crossed = self._crossed or self._wealth.log >= -math.log(self._plan.alpha)
        if self._crossed:
            return self._shown()
        if self._doubt is not None and self._doubt.log >= -math.log(_FUTILITY_ALPHA):
            return self._made("keep", f"a gain of {self._plan.wanted_gain:g} is refuted")
        return self._unshown()

    def _planned(self) -> Decision:
        pairs = len(self._differences)
        if pairs not in self._looks:
            return self._made("undecided", "between two looks")
        look = self._looks.index(pairs) + 1 + (4 - len(self._looks))
        bound = planned_bound(self._differences, look, self._plan.alpha)
        return self._shown(bound) if bound > self._null else self._unshown(bound)

    def _shown(self, bound: float | None = None) -> Decision:
        """The gain is shown; promote if all guardrails are shown, too."""
        goal = -math.log(self._plan.alpha)
        unmet = [key for key, (wealth, _) in self._guarded.items() if wealth.log < goal]
        if not unmet:
            return self._made("promote", "the gain and every guardrail are shown", bound)
        missing = ", ".join(sorted(unmet))
        if self._is_last():
            return self._made("keep", f"not shown to be kept: {missing}", bound)
        return self._made("undecided", f"the gain is shown, but not yet: {missing}", bound)

    def _unshown(self, bound: float | None = None) -> Decision:
        if self._is_last():
            return self._made("keep", f"no gain above {self._plan.min_gain:g} is shown", bound)
        return self._made("undecided", "the gain is not shown yet")

    def _is_last(self) -> bool:
        return len(self._differences) == len(self._plan.tasks)

    def _made(
        self,
        kind: Literal["promote", "keep", "undecided"],
        why: str,
        bound: float | None = None,
    ) -> Decision:
        plan, pairs = self._plan, len(self._differences)
        if bound is None:
            # An open decision is looked at after every pair: the bisection waits for its end.
            bound = -1.0 if kind == "undecided" else gain_at_least(self._differences, plan.alpha)
            bound = max(bound, self._null) if self._crossed else bound
        rails: dict[str, float] = {}
        if kind != "undecided":
            for key, (_, found) in sorted(self._guarded.items()):
                rails[key] = gain_at_least(found, plan.alpha) * plan.width
        return Decision(
            kind,
            bound * plan.width,
            self._total / pairs * plan.width,
            pairs,
            rails,
            why,
        )

    def at_least(self) -> float:
        """Return what the gain is above so far, at any time, with confidence 1 - alpha."""
        return gain_at_least(self._differences, self._plan.alpha) * self._plan.width
