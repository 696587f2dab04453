"""Plans: what is compared, how, and what counts as shown. Made before any data, never changed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_core.errors import InvalidArgumentError
from agl_promote.planned import ALPHAS, looks_of

__all__ = ["Guardrail", "LivePlan", "Plan", "Terms", "digest_of"]

Price: TypeAlias = Annotated[float, Field(ge=0)]


class Guardrail(BaseModel):
    """Something that must not get worse by more than a margin.

    It holds only if that is shown, too. An alarm that merely blocks comes too late: a candidate
    that gains on 90 % of the tasks and loses on 10 % is promoted before the alarm in half of all
    cases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^(input(\.[^.:]+)+|reward\.[^:]+)$")
    """``input.country``: each value of that key of the tasks is a segment of its own.
    ``reward.format``: another reward of the rollouts, by name."""
    margin: float = Field(gt=0)
    """In units of the reward."""

    @classmethod
    def of(cls, text: str) -> Guardrail:
        """Read ``path:margin``.

        Raises:
            InvalidArgumentError: It is not of this form.
        """
        path, _, margin = text.rpartition(":")
        try:
            return cls(path=path, margin=float(margin))
        except ValueError as error:
            raise InvalidArgumentError(
                f"{text!r} is not a guardrail; write input.KEY:MARGIN or reward.NAME:MARGIN"
            ) from error


class Terms(BaseModel):
    """The fields that plans of experiments and of live trials share."""

    # JSON, as which stores keep a plan, has no infinity: it would come back as another plan.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[\w.-]{1,80}$")
    """Name of the promotion; what it promotes is live as ``live:<name>``."""
    champion: str
    """Id of the snapshot to beat."""
    champion_version: int = Field(default=0, ge=0)
    """Version of ``live:<name>`` that points to it; 0 if nothing is live."""
    candidate: str
    """Id of the snapshot that may replace it."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Largest probability of promoting a candidate that is not better."""
    min_gain: float = 0.0
    """Gain above which the candidate must be, in units of the reward."""
    wanted_gain: float | None = None
    """A gain that would be worth having; an anytime test gives up once it is refuted at 10 %."""
    guardrails: list[Guardrail] = Field(default_factory=list)
    reward_range: tuple[float, float]
    """Lowest and highest possible reward; a rollout without a reward counts as the lowest."""
    follows: str = ""
    """Digest of the plan before it under this name, which makes the digest of this one unique; set
    when it is stored."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        low, high = self.reward_range
        if not (low < high and math.isfinite(self.width)):
            raise ValueError(f"the reward range must be (lowest, highest), not {self.reward_range}")
        if self.candidate == self.champion:
            raise ValueError("the candidate is the champion")
        if not -1 < self.min_gain / self.width < 1:
            raise ValueError("min_gain is as wide as the reward range")
        if self.wanted_gain is not None and not 0 < self.wanted_gain / self.width < 1:
            raise ValueError("wanted_gain must be above 0 and below the width of the reward range")
        if any(rail.margin >= self.width for rail in self.guardrails):
            raise ValueError("the margin of a guardrail is as wide as the reward range")
        if len({rail.path for rail in self.guardrails}) < len(self.guardrails):
            raise ValueError("two guardrails are about the same")
        return self

    counted: ClassVar[str] = "pairs"
    """The noun for the data that the test counts."""

    @property
    def width(self) -> float:
        """Width of the reward range."""
        low, high = self.reward_range
        return high - low

    @property
    def unit(self) -> float:
        """Gain of a difference of 1: the tests take differences in [-1, 1]."""
        return self.width

    @property
    def most(self) -> int:
        """Number of pairs or episodes after which the test ends."""
        raise NotImplementedError

    @property
    def looks(self) -> list[int] | None:
        """Numbers of pairs after which the evidence is looked at; None for any number."""
        return None

    @property
    def margins(self) -> dict[str, float]:
        """The margin of each reward or segment that must be shown not to get worse."""
        return {rail.path: rail.margin for rail in self.guardrails}


def digest_of(stored: Mapping[str, Any]) -> str:
    """Return the digest of a plan as it is stored: one that was changed has another one.

    It is of the stored text, and not of the model, which a later version may give new fields.
    """
    text = json.dumps(stored, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Plan(Terms):
    """The plan of an experiment: both on each task of a list, as pairs."""

    source: str = ""
    """Where the tasks come from, as in a train file."""
    tasks: list[str] = Field(min_length=1)
    """Digests of the tasks, in the order of their pairs."""
    test: Literal["anytime", "planned"] = "planned"
    """``anytime`` may stop after every pair; ``planned`` looks four times and shows more."""
    segments: list[str] = Field(default_factory=list[str])
    """Every segment of the tasks, such as ``input.country=de``. Each must be shown, also one that
    no pair has been in yet."""
    repeats: int = Field(default=1, ge=1)
    """Rollouts of each task with each of the two; their mean is one value."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Seconds for a batch of pairs; rollouts that are open then count as the lowest reward."""
    max_cost: Annotated[float, Field(gt=0)] | None = None
    """No batch begins once the rollouts have cost so much; it needs ``price``. Such an end never
    promotes."""
    price: tuple[Price, Price] | None = None
    """Cost of a million input tokens and of a million output tokens."""
    batch: int = Field(default=16, ge=1)
    """Pairs that are enqueued together."""
    seed: int = 0
    """Of the order of the tasks, and of the two rollouts of each pair."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.test == "planned" and self.alpha not in ALPHAS:
            raise ValueError(f"the planned test has an alpha of {', '.join(map(str, ALPHAS))}")
        for rail in self.guardrails:
            if rail.path.startswith("input.") and not self._segments_of(rail):
                raise ValueError(f"the plan lacks the segments of {rail.path}")
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("some tasks are equal; use repeats to run a task several times")
        if self.max_cost is not None and self.price is None:
            raise ValueError("max_cost needs a price")
        return self

    @property
    def most(self) -> int:
        return len(self.tasks)

    @property
    def looks(self) -> list[int] | None:
        return looks_of(len(self.tasks)) if self.test == "planned" else None

    @property
    def margins(self) -> dict[str, float]:
        """See :class:`Terms`; of an input each of its segments is guarded."""
        return {
            key: rail.margin
            for rail in self.guardrails
            for key in (self._segments_of(rail) if rail.path.startswith("input.") else [rail.path])
        }

    def _segments_of(self, rail: Guardrail) -> list[str]:
        return [one for one in self.segments if one.partition("=")[0] == rail.path]


class LivePlan(Terms):
    """The plan of a trial on live traffic: each episode gets one of the two at random.

    A guardrail names a segment by its value, ``input.country=de``, since the segments to
    come are not known.
    """

    counted: ClassVar[str] = "episodes"

    share: float = Field(default=0.5, gt=0, lt=1)
    """Probability that an episode gets the candidate."""
    deadline: float = Field(gt=0)
    """Seconds after its enrolment in which an episode must have got its reward; without one it
    counts as the lowest."""
    max_episodes: int = Field(default=2000, ge=1, le=20_000)
    """Episodes after which the trial ends. The store keeps the reward of each."""
    holdback: float = Field(default=0.1, gt=0, lt=1)
    """After a promotion, share of the episodes that stay on the old version."""
    watch: int = Field(default=2000, ge=0, le=20_000)
    """Episodes after a promotion that are watched, to roll back if the old version is shown to be
    better; 0 for none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for rail in self.guardrails:
            if rail.path.startswith("input.") and "=" not in rail.path:
                raise ValueError(f"name a segment, as in {rail.path}=VALUE")
        return self

    @property
    def most(self) -> int:
        return self.max_episodes

    @property
    def scale(self) -> float:
        """Factor that brings the samples of episodes into [-1, 1]; see :mod:`.episodes`."""
        return 2 * min(self.share, 1 - self.share)

    @property
    def unit(self) -> float:
        """See :class:`Terms`."""
        return self.width / self.scale

    def of_holdback(self) -> LivePlan:
        """Return the plan of the test after a promotion: is the old version better?

        Its candidate is the old version, and "promote" means to roll back.
        """
        return self.model_copy(
            update={
                "champion": self.candidate,
                "candidate": self.champion,
                "share": self.holdback,
                "max_episodes": self.watch,
                "min_gain": 0.0,
                "wanted_gain": None,
                "guardrails": [],
            }
        )
