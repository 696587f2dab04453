"""Plans: what is compared, how, and what counts as shown. Made before any data, never changed."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_core.errors import InvalidArgumentError
from agl_promote.planned import ALPHAS

__all__ = ["Guardrail", "Plan"]


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


class Plan(BaseModel):
    """The plan of one promotion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[\w.-]{1,80}$")
    """Name of the promotion; what it promotes is live as ``live:<name>``."""
    champion: str
    """Id of the snapshot to beat."""
    champion_version: int = Field(default=0, ge=0)
    """Version of ``live:<name>`` that points to it; 0 if nothing is live."""
    candidate: str
    """Id of the snapshot that may replace it."""
    source: str = ""
    """Where the tasks come from, as in a train file."""
    tasks: list[str] = Field(min_length=1)
    """Digests of the tasks, in the order of their pairs."""
    test: Literal["anytime", "planned"] = "planned"
    """``anytime`` may stop after every pair; ``planned`` looks four times and shows more."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Largest probability of promoting a candidate that is not better."""
    min_gain: float = 0.0
    """Gain above which the candidate must be, in units of the reward."""
    wanted_gain: float | None = None
    """A gain that would be worth having; ``anytime`` gives up once it is refuted at 10 %."""
    guardrails: list[Guardrail] = Field(default_factory=list)
    segments: list[str] = Field(default_factory=list[str])
    """Every segment of the tasks, such as ``input.country=de``. Each must be shown, also one that
    no pair has been in yet."""
    repeats: int = Field(default=1, ge=1)
    """Rollouts of each task with each of the two; their mean is one value."""
    reward_range: tuple[float, float]
    """Lowest and highest possible reward; a rollout without a reward counts as the lowest."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Seconds for a batch of pairs; rollouts that are open then count as the lowest reward."""
    batch: int = Field(default=16, ge=1)
    """Pairs that are enqueued together."""
    seed: int = 0
    """Of the order of the tasks, and of the two rollouts of each pair."""

    @model_validator(mode="after")
    def _check(self) -> Plan:
        low, high = self.reward_range
        if not low < high:
            raise ValueError(f"the reward range must be (lowest, highest), not {self.reward_range}")
        if self.test == "planned" and self.alpha not in ALPHAS:
            raise ValueError(f"the planned test has an alpha of {', '.join(map(str, ALPHAS))}")
        if self.candidate == self.champion:
            raise ValueError("the candidate is the champion")
        for rail in self.guardrails:
            if not any(one.partition("=")[0] == rail.path for one in self.guarded):
                raise ValueError(f"the plan lacks the segments of {rail.path}")
        if not -1 < self.min_gain / self.width < 1:
            raise ValueError("min_gain is as wide as the reward range")
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("some tasks are equal; use repeats to run a task several times")
        return self

    @property
    def guarded(self) -> list[str]:
        """What must be shown not to get worse: segments, and names of rewards."""
        rewards = [rail.path for rail in self.guardrails if rail.path.startswith("reward.")]
        return [*self.segments, *rewards]

    @property
    def width(self) -> float:
        """Width of the reward range."""
        low, high = self.reward_range
        return high - low

    @property
    def digest(self) -> str:
        """Digest of all fields: a plan that was changed has another one."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=16).hexdigest()
