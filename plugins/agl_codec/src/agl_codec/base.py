"""The error and the base class of translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from agl_core.genai import Json

__all__ = ["MALFORMED", "CodecError", "StreamTranslator"]

MALFORMED: Final = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Errors of code that reads JSON of a protocol and meets other types than the protocol has."""


class CodecError(ValueError):
    """A request or response has no equivalent in the other protocol; the message says what."""


class StreamTranslator(ABC):
    """Translates the events of a stream, one at a time.

    Args:
        usage: Whether a chat stream that is the result ends with a chunk of usage.
    """

    def __init__(self, *, usage: bool = False) -> None:
        self._usage = usage

    @abstractmethod
    def feed(self, event: Json) -> list[Json]:
        """Return the translation of an event: any number of events."""

    @abstractmethod
    def close(self) -> list[Json]:
        """Return the events that end the stream; none if the source was truncated."""
