"""Finds rollouts by what they say: their tasks, messages, answers of tools, and errors.

No store has an index of text. So a search reads the spans of one rollout after the other, the
newest first, for as long as a page may wait, and says how far it came.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final, cast

from pydantic import BaseModel

from agl_core.errors import SpansEvictedError
from agl_core.store import EncodedSpan, LightningStore
from agl_core.types import AttemptedRollout, Rollout
from agl_store_kit import Pauses

__all__ = ["MAX_TEXT", "TextMatches", "search_text"]

MAX_TEXT: Final = 200
"""Characters of a text to search for."""
_PAGE: Final = 50
"""Rollouts that are searched between two looks at the clock."""
_MOST_FOUND: Final = 500
"""More than a page shows; a later query goes on from there."""


class TextMatches(BaseModel):
    """Rollouts that say a text, the newest first."""

    rollout_ids: list[str]
    searched: int
    """Rollouts that have been searched, from the newest on. Give it as the offset to go on."""
    total: int
    """Rollouts in the store."""


async def search_text(
    store: LightningStore, text: str, offset: int, patience: float
) -> TextMatches:
    """Return rollouts whose task or latest attempt has a text, in any case of its letters.

    At least one rollout is searched; at most 500 are returned.

    Args:
        store: The store.
        text: The text. It is looked for in each string of the attributes and in the task.
        offset: Rollouts to skip, from the newest on.
        patience: Longest search, in seconds; reading one rollout may take longer.
    """
    ends = time.monotonic() + patience
    wanted = _Wanted(text)
    found: list[str] = []
    searched = max(0, offset)
    pauses = Pauses()
    while True:
        page = await store.query_rollouts(
            sort_by="start_time", sort_order="desc", limit=_PAGE, offset=searched
        )
        for rollout in page.items:
            searched += 1
            if await _says(store, rollout, wanted, pauses):
                found.append(rollout.rollout_id)
            await pauses.take()
            if len(found) >= _MOST_FOUND or time.monotonic() > ends:
                return TextMatches(rollout_ids=found, searched=searched, total=page.total)
        if len(page.items) < _PAGE:
            return TextMatches(rollout_ids=found, searched=page.total, total=page.total)


class _Wanted:
    """A text, in any case of its letters."""

    def __init__(self, text: str) -> None:
        self._text = text.casefold()
        # ASCII letters and digits are the same in JSON, also in JSON inside of JSON.
        plain = re.findall("[a-z0-9]+", text.lower(), re.ASCII)
        self._part = max(plain, key=len, default="").encode()

    def may_be_in(self, payload: bytes) -> bool:
        """Return whether a search of JSON is worth parsing it, which costs much more."""
        return self._part in payload.lower()

    def is_in(self, value: Any) -> bool:
        """Return whether a string in a JSON value has the text; JSON in strings is read, too."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                waiting.extend(cast("dict[str, Any]", one).values())
            elif isinstance(one, (list, tuple)):
                waiting.extend(cast("list[Any]", one))
            elif isinstance(one, str):
                if one.lstrip()[:1] in ("{", "["):
                    try:
                        waiting.append(json.loads(one))
                        continue
                    except (ValueError, RecursionError):
                        pass  # not JSON: searched as it is
                if self._text in one.casefold():
                    return True
        return False


async def _says(store: LightningStore, rollout: Rollout, wanted: _Wanted, pauses: Pauses) -> bool:
    if wanted.is_in(rollout.input):
        return True
    if not isinstance(rollout, AttemptedRollout):
        return False
    try:
        page = await store.query_encoded_spans(rollout.rollout_id, rollout.attempt.attempt_id)
    except SpansEvictedError:
        return False
    for span in page.items:
        if _span_says(span, wanted):
            return True
        await pauses.take()
    return False


def _span_says(span: EncodedSpan, wanted: _Wanted) -> bool:
    if not wanted.may_be_in(span.payload):
        return False
    decoded = span.decode()
    return wanted.is_in(decoded.attributes) or wanted.is_in(decoded.status.description)
