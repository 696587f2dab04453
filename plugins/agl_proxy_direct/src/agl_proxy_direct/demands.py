"""What a backend demands of translated requests, learned from its refusals.

No API says which form a server wants. A refusal does, so the call is sent once more in that form,
and later calls are in it from the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agl_core.genai import Json, fold_after_results
from agl_proxy_direct.backends import Backend

__all__ = ["DEMANDS", "Demand", "Demands"]


@dataclass(frozen=True, slots=True)
class Demand:
    """A form of requests that some backends demand.

    Attributes:
        refusal: Found in the body of the error with which they refuse another form.
        meet: Changes a request of chat to that form, in place; returns whether it was in another.
        lost: What a request loses by it, for ``agl.proxy.lost``; empty if nothing.
    """

    refusal: re.Pattern[bytes]
    meet: Callable[[Json], bool]
    lost: str = ""


def _fold(body: Json) -> bool:
    """Add what the user says after a tool's result to the result."""
    folded = fold_after_results(body["messages"])
    changed = len(folded) < len(body["messages"])
    if changed:
        body["messages"] = folded
    return changed


def _rename_limit(body: Json) -> bool:
    """Give the limit of tokens the name under which it counts those of reasoning, too."""
    changed = "max_tokens" in body
    if changed:
        body["max_completion_tokens"] = body.pop("max_tokens")
    return changed


DEMANDS: Final = (
    # What templates of Mistral and Gemma, and Mistral's own tokenizer, say of the user after a
    # tool. What others render as two messages stays two.
    Demand(re.compile(rb"roles must alternate|after role .{0,2}tool"), _fold, "user_after_tool"),
    # What OpenAI and Azure say of `max_tokens` for the models that reason.
    Demand(
        re.compile(rb"\bmax_tokens\b.{0,80}\bmax_completion_tokens\b", re.DOTALL), _rename_limit
    ),
)


class Demands:
    """The demands of the backends, as far as they are known. For one event loop."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, Demand]] = set()

    def of(self, backend: Backend) -> tuple[Demand, ...]:
        """Return the known demands of a backend."""
        place = (backend.api_base, backend.model)
        return tuple(demand for demand in DEMANDS if (*place, demand) in self._known)

    def learn(self, backend: Backend, refusal: bytes) -> Iterator[Demand]:
        """Note, and yield, the demands that the body of an error names."""
        for demand in DEMANDS:
            if demand.refusal.search(refusal):
                self._known.add((backend.api_base, backend.model, demand))
                yield demand
