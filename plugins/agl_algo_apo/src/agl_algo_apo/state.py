"""The state of APO between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count

from pydantic import Field

import agl_prompt_search as prompt_search
from agl_prompt_search import SearchState

__all__ = ["APOState", "Candidate"]


class Candidate(prompt_search.Candidate):
    """A proposed prompt; one row of the history.

    Attributes:
        prompt: The template; for a rejected edit, the editor's answer.
        unanswered: Whether it is unusable because a call failed; a resumed run asks again.
    """

    prompt: str = ""
    unanswered: bool = False

    def texts(self) -> Mapping[str, str]:
        return {"prompt": self.prompt}


class APOState(SearchState[Candidate]):
    """The state of a search between two steps.

    Attributes:
        beam: Versions that the next round edits, best first.
        tasks: Fingerprints of the datasets, which must not change when a run resumes.
        plan: Sizes, which must not change either: they number the candidates and choose the tasks.
    """

    beam: list[str] = Field(default_factory=list)
    tasks: dict[str, str] = Field(default_factory=dict)
    plan: dict[str, int] = Field(default_factory=dict)

    @property
    def survivors(self) -> Sequence[str]:
        return self.beam

    def forget_unanswered(self) -> None:
        """Take the proposals of the present round out whose calls failed, to make them again."""
        self.history = [
            one for one in self.history if not (one.unanswered and one.round > self.rounds)
        ]

    def name_batch(self, name: str) -> str:
        """Return the name of a batch, with a number if an earlier one of this name was read.

        What the infrastructure lost of that is measured again; its rows are other ones.
        """
        names = chain((name,), (f"{name}-{number}" for number in count(2)))
        return next(one for one in names if one not in self.batches)
