"""What GEPA knows between two steps, and the journal that a resumed run reads it from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

import agl_prompt_search as prompt_search
from agl_core.algorithm import ChatReply
from agl_prompt_search import SearchState

__all__ = ["Candidate", "GEPAState", "Journal"]


class Candidate(prompt_search.Candidate):
    """Prompts that were proposed together; a row of the history.

    Attributes:
        prompts: The templates by name; what the model answered, if that was rejected.
        outclassed: Rejected because it did no better than its parent on a few tasks.
        repeats: The same as an outclassed candidate, which is tried again in its place.
    """

    prompts: dict[str, str] = Field(default_factory=dict)
    outclassed: bool = False
    repeats: bool = False

    def texts(self) -> Mapping[str, str]:
        return self.prompts


class Journal(BaseModel):
    """What came from outside: nothing else makes one run differ from another of the same seed.

    Attributes:
        rewards: Of each batch of rollouts, by its name; None for what did not end in time.
        answers: Of the model, by candidate and prompt.
    """

    rewards: dict[str, list[float | None]] = Field(default_factory=dict)
    answers: dict[str, ChatReply] = Field(default_factory=dict)


class GEPAState(SearchState[Candidate]):
    """A search between two steps.

    Attributes:
        front: Versions on the Pareto front, best first: on some validation task no other does
            better. They are the parents to be.
        journal: What a resumed run goes on from.
        plan: Options and sizes that a run cannot be resumed with other values of.
    """

    front: list[str] = Field(default_factory=list)
    journal: Journal = Field(default_factory=Journal)
    plan: dict[str, Any] = Field(default_factory=dict)

    @property
    def survivors(self) -> Sequence[str]:
        return self.front

    def with_prompts(self, prompts: Mapping[str, str]) -> Candidate | None:
        """Return the candidate that these prompts were first proposed as."""
        return next((one for one in self.history if one.prompts == prompts), None)
