"""A plan applied to data: pure, so that a promotion that was killed decides the same again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from agl_promote.betting import Wealth, gain_at_least
from agl_promote.plan import Plan, Terms
from agl_promote.planned import LOOKS, planned_bound

__all__ = ["Decision", "Evidence", "Pair", "Sample"]

_FUTILITY_ALPHA: Final = 0.1
"""A wanted gain that is refuted with this error is not pursued. Stopping early never promotes."""

Kind = Literal["promote", "keep", "undecided"]


P = TypeVar("P", bound=Terms)
P_contra = TypeVar("P_contra", bound=Terms, contravariant=True)


class Sample(Protocol[P_contra]):
    """A piece of evidence for a plan: a pair of an experiment, or an episode of live traffic."""

    def differences(self, plan: P_contra, /) -> tuple[float, Mapping[str, float]]:
        """Return differences in [-1, 1], in favour of the candidate: all, and what is guarded."""
        ...


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

    def differences(self, plan: Plan) -> tuple[float, Mapping[str, float]]:
        """See :class:`Sample`."""
        guarded = {key: (new - old) / plan.width for key, (old, new) in self.guarded.items()}
        return (self.candidate - self.champion) / plan.width, guarded


class Decision(NamedTuple):
    """The state of the evidence.

    Attributes:
        kind: ``promote``; ``keep``: not shown, and more data will not come; ``undecided``: not
            shown yet.
        at_least: The gain is above this, with confidence 1 - alpha; at any time with an anytime
            test.
        gain: Mean gain.
        pairs: Number of pairs, or of episodes.
        guardrails: Of each segment or reward: the least change that is shown.
        why: In words.
    """

    kind: Kind
    at_least: float
    gain: float
    pairs: int
    guardrails: Mapping[str, float]
    why: str


class _Series:
    """Differences, and the bettors against "their mean is at most ``null``"."""

    def __init__(self, null: float) -> None:
        self.values: list[float] = []
        self._wealth = Wealth(null)

    def add(self, difference: float) -> None:
        self.values.append(difference)
        self._wealth.bet(difference)

    def is_shown(self, alpha: float) -> bool:
        return self._wealth.log >= -math.log(alpha)


class Evidence(Generic[P]):
    """Takes data in the order of their enrolment and decides.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: P) -> None:
        self._plan = plan
        self._null = plan.min_gain / plan.unit
        self._gain = _Series(self._null)
        self._total = 0.0
        self._crossed = False
        """Whether the anytime test has shown the gain; what was shown once stays so."""
        wanted = plan.wanted_gain
        # Against "the gain is at least what is wanted": the same bet on the negative differences.
        self._doubt = None if wanted is None else Wealth(-wanted / plan.unit)
        self._guarded = {key: _Series(-margin / plan.unit) for key, margin in plan.margins.items()}
        self.decision = Decision("undecided", -plan.width, 0.0, 0, {}, "no data yet")

    def add(self, sample: Sample[P]) -> Decision:
        """Add the next sample; return the decision, which is final unless it is ``undecided``."""
        if self.decision.kind != "undecided":
            return self.decision
        difference, guarded = sample.differences(self._plan)
        self._gain.add(difference)
        self._total += difference
        if self._doubt is not None:
            self._doubt.bet(-difference)
        for key, value in guarded.items():
            if key in self._guarded:
                self._guarded[key].add(value)
        looks = self._plan.looks
        self.decision = self._anytime() if looks is None else self._planned(looks)
        return self.decision

    def end(self, why: str) -> Decision:
        """End without a promotion, before all data are there."""
        if self.decision.kind == "undecided":
            self.decision = self._made("keep", why)
        return self.decision

    def at_least(self) -> float:
        """Return what the gain is above so far, at any time, with confidence 1 - alpha."""
        return self._bound_of(self._gain)

    def _anytime(self) -> Decision:
        self._crossed = self._crossed or self._gain.is_shown(self._plan.alpha)
        if self._crossed:
            return self._shown()
        if self._doubt is not None and self._doubt.log >= -math.log(_FUTILITY_ALPHA):
            return self._made("keep", f"a gain of {self._plan.wanted_gain:g} is refuted")
        return self._unshown()

    def _planned(self, looks: list[int]) -> Decision:
        count = len(self._gain.values)
        if count not in looks:
            return self._made("undecided", "between two looks")
        # A list of fewer than four tasks has only the last looks.
        look = looks.index(count) + 1 + LOOKS - len(looks)
        bound = planned_bound(self._gain.values, look, self._plan.alpha)
        return self._shown(bound) if bound > self._null else self._unshown(bound)

    def _shown(self, bound: float | None = None) -> Decision:
        """Promote if all guardrails are shown, too."""
        alpha = self._plan.alpha
        unmet = [key for key, series in self._guarded.items() if not series.is_shown(alpha)]
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
        return len(self._gain.values) == self._plan.most

    def _made(self, kind: Kind, why: str, bound: float | None = None) -> Decision:
        """Make a decision; without a bound of the planned test, with that of the bettors."""
        plan, count = self._plan, len(self._gain.values)
        is_open = kind == "undecided"
        if bound is not None:
            at_least = bound * plan.unit
        elif is_open:  # it is made after every pair: the bisections wait for the end
            at_least = -plan.width
        else:
            at_least = self.at_least()
        if self._crossed:
            at_least = max(at_least, plan.min_gain)
        rails = (
            {} if is_open else {k: self._bound_of(it) for k, it in sorted(self._guarded.items())}
        )
        gain = self._total / count * plan.unit if count else 0.0
        return Decision(kind, at_least, gain, count, rails, why)

    def _bound_of(self, series: _Series) -> float:
        plan = self._plan
        return max(-plan.width, gain_at_least(series.values, plan.alpha) * plan.unit)
