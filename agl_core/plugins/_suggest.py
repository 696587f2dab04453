"""Suggests the word that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the choice nearest to ``word``, or an empty string."""
    for close in difflib.get_close_matches(word, list(choices), n=1):
        return f"; did you mean {close!r}?"
    return ""
