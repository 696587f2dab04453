"""Finds out why a prompt does not continue the tokens of an earlier row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agl_adapters import ITEM_BYTES, ModelCall, common_prefix

_PROBE = 8
"""Tokens after a break that must occur later in the history to count the gap as cut out."""


class BreakCause(StrEnum):
    """Reasons for which a call does not continue an earlier row; the value is shown to users."""

    OTHER_AGENT = "another agent's first call"
    OTHER_MODEL = "first call to another model"
    RESAMPLED = "the same prompt sampled again"
    TRUNCATED = "history truncated"
    RETOKENISED = "the model's own tokens were tokenised differently"
    EDITED = "history edited"


@dataclass(slots=True)
class History:
    """The content of a row so far, against which the next prompt is compared.

    Attributes:
        packed: The token ids, :data:`~agl_adapters.ITEM_BYTES` each.
        responses: Positions of each response, ``(start, end)`` in tokens, ascending.
        last_call: The row's last call.
        gap: Whether a call without token ids followed the row's last call.
    """

    packed: bytes = b""
    responses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    last_call: ModelCall | None = None
    gap: bool = False


def why_broken(
    history: History,
    before: Sequence[dict[str, Any]] | None,
    prompt: bytes,
    messages: Sequence[dict[str, Any]] | None,
) -> tuple[BreakCause, int]:
    """Return why ``prompt`` does not continue ``history``, and the length of their common prefix.

    Token ids decide, with one exception. Only the text distinguishes a new tokenisation from an
    edit: equal messages with other tokens were tokenised differently.

    Args:
        history: The row with the longest common prefix with the prompt.
        before: Messages of its last call with the answer, in OpenAI's format; None if they were not
            captured.
        prompt: Packed token ids of the prompt.
        messages: Messages of the prompt, if they were captured.
    """
    shared = common_prefix(history.packed, prompt)
    if shared * ITEM_BYTES == len(prompt):
        again = any(start == shared for start, _ in history.responses)
        return (BreakCause.RESAMPLED if again else BreakCause.TRUNCATED), shared
    if messages is not None and before is not None:
        if messages[: len(before)] == before:
            return BreakCause.RETOKENISED, shared
        return (BreakCause.TRUNCATED if _is_cut(messages, before) else BreakCause.EDITED), shared
    cut = _turns_up_later(history.packed, prompt, shared)
    if any(start <= shared < end for start, end in history.responses):
        # The break is inside the model's own answer: either a part was removed from it (such as
        # its reasoning), or the same text was tokenised differently.
        return (BreakCause.EDITED if cut else BreakCause.RETOKENISED), shared
    return (BreakCause.TRUNCATED if cut else BreakCause.EDITED), shared


def _is_cut(messages: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> bool:
    """Return whether ``messages`` begin with a subsequence of ``before`` that keeps its last."""
    rest = iter(before)
    kept = 0
    for message in messages:
        if not any(message == candidate for candidate in rest):
            break
        kept += 1
    return before[-1] in messages[:kept]


def _turns_up_later(history: bytes, prompt: bytes, shared: int) -> bool:
    """Return whether the prompt's tokens after the common prefix occur later in the history."""
    probe = prompt[shared * ITEM_BYTES : (shared + _PROBE) * ITEM_BYTES]
    place = history.find(probe, shared * ITEM_BYTES)
    while place >= 0 and place % ITEM_BYTES:  # a match in the middle of a token is accidental
        place = history.find(probe, place + 1)
    return place >= 0
