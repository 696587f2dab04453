"""The state of GEPA between two steps, and the journal from which a run resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

import agl_prompt_search as prompt_search
from agl_prompt_search import ChatReply, SearchState

__all__ = ["Candidate", "GEPAState", "Journal"]


class Candidate(prompt_search.Candidate):
    """Prompts that were proposed together; one row of the history.

    Attributes:
        prompts: The templates by name; for a rejected edit, the model's answer.
        outclassed: True if it was rejected for not beating its parent on the minibatch.
        repeats: True if it equals an outclassed candidate, which is tried again instead of it.
    """

    prompts: dict[str, str] = Field(default_factory=dict)
    outclassed: bool = False
    repeats: bool = False

    def texts(self) -> Mapping[str, str]:
        return self.prompts


class Journal(BaseModel):
    """All results from outside; runs with the same seed and the same journal are equal.

    Attributes:
        rewards: Rewards of each batch of rollouts, by name; None for failures.
        answers: Answers of the model, by candidate and prompt.
    """

    rewards: dict[str, list[float | None]] = Field(default_factory=dict)
    answers: dict[str, ChatReply] = Field(default_factory=dict)


class GEPAState(SearchState[Candidate]):
    """The state of a search between two steps.

    Attributes:
        front: Versions on the Pareto front, best first. On at least one validation task no other
            candidate is better. Parents are chosen among them.
        journal: Results from which a run resumes.
        plan: Options and sizes that must not change when a run resumes.
    """

    front: list[str] = Field(default_factory=list)
    journal: Journal = Field(default_factory=Journal)
    plan: dict[str, Any] = Field(default_factory=dict)

    @property
    def survivors(self) -> Sequence[str]:
        return self.front

    def with_prompts(self, prompts: Mapping[str, str]) -> Candidate | None:
        """Return the first candidate with these prompts."""
        return next((one for one in self.history if one.prompts == prompts), None)
