"""The state of APO between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

import agl_prompt_search as prompt_search
from agl_prompt_search import SearchState

__all__ = ["APOState", "Candidate"]


class Candidate(prompt_search.Candidate):
    """A proposed prompt; one row of the history.

    Attributes:
        prompt: The template; for a rejected edit, the editor's answer.
    """

    prompt: str = ""

    def texts(self) -> Mapping[str, str]:
        return {"prompt": self.prompt}


class APOState(SearchState[Candidate]):
    """The state of a search between two steps.

    Attributes:
        beam: Versions that the next round edits, best first.
        tasks: Fingerprints of the datasets, which must not change when a run resumes.
    """

    beam: list[str] = Field(default_factory=list)
    tasks: dict[str, str] = Field(default_factory=dict)

    @property
    def survivors(self) -> Sequence[str]:
        return self.beam
