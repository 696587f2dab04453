"""Errors of translations, and of code that reads a protocol's JSON."""

from __future__ import annotations

from typing import Final

__all__ = ["MALFORMED", "CodecError"]

MALFORMED: Final = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Errors of code that reads JSON of a protocol and meets other types than the protocol has."""


class CodecError(ValueError):
    """A request or response has no equivalent in the other protocol; the message says what."""
