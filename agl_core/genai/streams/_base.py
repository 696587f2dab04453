"""The base class of stream assemblers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from agl_core.genai._wire import Json


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


def error_of(event: Json) -> str | None:
    """Return the message of an error event, in any protocol; None for other events."""
    error = event.get("error")
    if error is None:
        return None
    if isinstance(error, dict):
        details = cast("Json", error)
        return str(details.get("message") or details)
    return str(error)
