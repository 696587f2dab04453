"""What reads the events of one protocol's streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from agl_core.genai._wire import Json

__all__ = ["Assembler", "error_of"]


class Assembler(ABC):
    """Puts a streamed response together, on the side of the relay that passes it on.

    Attributes:
        finished: Whether the model has said its last word; what follows is bookkeeping.
        started: Whether the model has said its first.
        error: What the backend said went wrong, within the stream.
    """

    def __init__(self) -> None:
        self.finished = False
        self.started = False
        self.error: str | None = None

    @abstractmethod
    def feed(self, event: Json) -> None:
        """Take the next event."""

    @abstractmethod
    def result(self) -> Json:
        """Return the response as it would have come in one piece; partial before the end."""


def error_of(event: Json) -> str | None:
    """Return the message of an event that tells of an error, in any protocol."""
    error = event.get("error")
    if error is None:
        return None
    if isinstance(error, dict):
        told = cast("Json", error)
        return str(told.get("message") or told)
    return str(error)
