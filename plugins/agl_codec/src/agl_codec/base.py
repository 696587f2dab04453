"""What all translations share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agl_core.genai import Json

__all__ = ["CodecError", "StreamTranslator"]


class CodecError(ValueError):
    """A request or response has no equivalent in the other protocol; the message says what."""


class StreamTranslator(ABC):
    """Turns the events of one protocol's stream into another's, one by one.

    Args:
        usage: Whether a chat stream, if that is what comes out, ends with a chunk of usage.
    """

    def __init__(self, *, usage: bool = False) -> None:
        self._usage = usage

    @abstractmethod
    def feed(self, event: Json) -> list[Json]:
        """Return the events that this one becomes."""

    @abstractmethod
    def close(self) -> list[Json]:
        """Return what ends the stream."""
