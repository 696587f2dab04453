"""Base classes of what reads streams: assemblers, and translators between protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from agl_core.genai._wire import Json

__all__ = ["Assembler", "StreamTranslator", "error_of", "failure_of"]


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
        usage: For a translation to chat: whether it ends with a chunk of usage.
    """

    def __init__(self, *, usage: bool = False) -> None:
        self._usage = usage

    @abstractmethod
    def feed(self, event: Json) -> list[Json]:
        """Return the translation of an event: any number of events."""

    def end(self) -> None:  # noqa: B027 - most protocols end with an event of their own
        """Note that the source said its stream is over, with ``[DONE]``."""

    @abstractmethod
    def close(self) -> list[Json]:
        """Return the events that end the stream; none if the source was truncated."""


def error_of(event: Json) -> str | None:
    """Return the message of an error event, in any protocol; None for other events.

    Some servers send ``"error": null`` or an empty one with each event. vLLM before 0.10, and
    servers made after it, send ``{"object": "error", "message": ...}``, OpenAI's Responses
    ``{"type": "error", "message": ...}``.
    """
    error = event.get("error")
    if not error:
        if event.get("object") == "error" or event.get("type") == "error":
            return str(event.get("message") or "unknown error")
        return None
    if isinstance(error, dict):
        details = cast("Json", error)
        return str(details.get("message") or details)
    return str(error)


def failure_of(choice: Json) -> str | None:
    """Return why a choice of chat ended with an error; None for another end.

    Gateways such as OpenRouter end a choice so if the provider's answer is truncated.
    """
    if choice.get("finish_reason") != "error":
        return None
    return error_of(choice) or "the backend ended the answer with an error"
