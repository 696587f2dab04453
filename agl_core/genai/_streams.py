"""Base classes of what reads streams: assemblers, and translators between protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from agl_core.genai._wire import Json

__all__ = ["Assembler", "StreamTranslator", "error_of"]


class Assembler(ABC):
    """Assembles a response from the events of its stream.

    Attributes:
        finished: Whether the model's output is complete; later events hold only usage and the like.
        started: Whether the model's output has begun.
        error: Message of an error event in the stream.
    """

    def __init__(self) -> None:
        self.finished = False
        self.started = False
        self.error: str | None = None

    @abstractmethod
    def feed(self, event: Json) -> None:
        """Add the next event."""

    @abstractmethod
    def result(self) -> Json:
        """Return the response without streaming; partial before the end."""


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


def error_of(event: Json) -> str | None:
    """Return the message of an error event, in any protocol; None for other events."""
    error = event.get("error")
    if error is None:
        return None
    if isinstance(error, dict):
        details = cast("Json", error)
        return str(details.get("message") or details)
    return str(error)
