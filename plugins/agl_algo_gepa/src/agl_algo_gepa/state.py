"""The state of GEPA between two steps, and the journal from which a run resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic_core import to_json

import agl_prompt_search as prompt_search
from agl_prompt_search import ChatReply, SearchState

__all__ = ["Candidate", "GEPAState", "Journal", "digest"]

_DIGITS: Final = 8
"""Digits of a digest: a run has some hundreds of entries, and names tell most of them apart."""


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
        answers: Answers of the model, by candidate, prompt and what it was shown.
        lost: Failed calls that a resumed run made again; they are paid for.
    """

    rewards: dict[str, list[float | None]] = Field(default_factory=dict)
    answers: dict[str, ChatReply] = Field(default_factory=dict)
    lost: list[ChatReply] = Field(default_factory=list[ChatReply])

    def forget_failures(self) -> None:
        """Take out the failed calls after the last answer, so that a resumed run makes them again.

        They ended the search, or would end it again: by a wrong name of a model, or an outage.
        Failures before the last answer stay, because later decisions depend on them.
        """
        good = [_number(key) for key, reply in self.answers.items() if not reply.problem]
        last = max(good, default=0)
        for key in [key for key in self.answers if _number(key) > last]:
            reply = self.answers[key]
            if f"{key}?0" not in self.answers:  # else a conversation, whose calls count
                self.lost.append(reply)
        self.answers = {key: it for key, it in self.answers.items() if _number(key) <= last}


def _number(key: str) -> int:
    """Return the number of the candidate in the key of an answer."""
    return int(key.partition("/")[0].removeprefix("v"))


def digest(prompts: Mapping[str, str], rows: Sequence[tuple[str, int]]) -> str:
    """Return what tells prompts on rows from others, for the names of journal entries.

    A name without it may mean something else in a resumed run whose decisions differ.
    """
    about = to_json([sorted(prompts.items()), [list(row) for row in rows]])
    return hashlib.sha256(about).hexdigest()[:_DIGITS]


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
