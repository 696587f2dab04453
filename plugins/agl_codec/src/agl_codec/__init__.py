"""Translates between the protocols of agents and of models: chat, Responses and Messages.

The functions are pure, over parsed JSON. Chat is the hub: a translation from Responses to Messages
goes through chat. So each other protocol needs, per direction, two functions and one class for
streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from agl_codec.base import MALFORMED, CodecError, StreamTranslator
from agl_codec.losses import request_losses, response_losses
from agl_codec.messages_request import request_from_messages, request_to_messages
from agl_codec.messages_response import response_from_messages, response_to_messages
from agl_codec.messages_stream import ChatToMessages, MessagesToChat
from agl_codec.responses_request import request_from_responses, request_to_responses
from agl_codec.responses_response import response_from_responses, response_to_responses
from agl_codec.responses_stream import ChatToResponses, ResponsesToChat
from agl_core.genai import Json, Protocol

__all__ = [
    "MALFORMED",
    "TRANSLATABLE",
    "CodecError",
    "StreamTranslator",
    "lost_in_request",
    "lost_in_response",
    "stream_translator",
    "translate_request",
    "translate_response",
]

T = TypeVar("T")
_Pair = tuple[Protocol, Protocol]
_REQUESTS: Final[dict[_Pair, Callable[[Json], Json]]] = {
    ("messages", "chat"): request_from_messages,
    ("chat", "messages"): request_to_messages,
    ("responses", "chat"): request_from_responses,
    ("chat", "responses"): request_to_responses,
}
_RESPONSES: Final[dict[_Pair, Callable[[Json], Json]]] = {
    ("messages", "chat"): response_from_messages,
    ("chat", "messages"): response_to_messages,
    ("responses", "chat"): response_from_responses,
    ("chat", "responses"): response_to_responses,
}
_STREAMS: Final[dict[_Pair, type[StreamTranslator]]] = {
    ("messages", "chat"): MessagesToChat,
    ("chat", "messages"): ChatToMessages,
    ("responses", "chat"): ResponsesToChat,
    ("chat", "responses"): ChatToResponses,
}
TRANSLATABLE: Final[frozenset[Protocol]] = frozenset(name for pair in _REQUESTS for name in pair)


def translate_request(source: Protocol, target: Protocol, request: Json) -> Json:
    """Return a request in another protocol; the original is not changed.

    Raises:
        CodecError: The target has no equivalent, or a field does not have its protocol's type.
    """
    return _translate(_REQUESTS, source, target, request)


def translate_response(source: Protocol, target: Protocol, response: Json) -> Json:
    """Return a response in another protocol; the original is not changed.

    Raises:
        CodecError: The target has no equivalent, or a field does not have its protocol's type.
    """
    return _translate(_RESPONSES, source, target, response)


def lost_in_request(source: Protocol, target: Protocol, request: Json) -> list[str]:
    """Return the names of the fields that the translation of a request leaves out.

    Raises:
        CodecError: A field does not have its protocol's type.
    """
    return _lost(request_losses, _REQUESTS, source, target, request)


def lost_in_response(source: Protocol, target: Protocol, response: Json) -> list[str]:
    """Return the names of the fields that the translation of a response leaves out.

    Raises:
        CodecError: A field does not have its protocol's type.
    """
    return _lost(response_losses, _RESPONSES, source, target, response)


def stream_translator(
    source: Protocol, target: Protocol, *, usage: bool = False
) -> StreamTranslator:
    """Return a translator of a stream's events from one protocol to another.

    Args:
        source: Protocol of the events to translate.
        target: Protocol to translate to.
        usage: Whether a chat stream ends with a chunk of usage.

    Raises:
        CodecError: There is no translation between the two.
    """
    if source in TRANSLATABLE and target in TRANSLATABLE and "chat" not in (source, target):
        first = stream_translator(source, "chat", usage=True)
        return _Chain(first, stream_translator("chat", target))
    made = _STREAMS.get((source, target))
    if made is None:
        raise CodecError(f"{source} streams cannot be turned into {target} streams")
    return made(usage=usage)


class _Chain(StreamTranslator):
    def __init__(self, first: StreamTranslator, second: StreamTranslator) -> None:
        self._first, self._second = first, second

    def feed(self, event: Json) -> list[Json]:
        return [made for chunk in self._first.feed(event) for made in self._second.feed(chunk)]

    def close(self) -> list[Json]:
        rest = [made for chunk in self._first.close() for made in self._second.feed(chunk)]
        return rest + self._second.close()


def _translate(
    table: dict[_Pair, Callable[[Json], Json]],
    source: Protocol,
    target: Protocol,
    value: Json,
) -> Json:
    if source == target:
        return value
    steps: list[_Pair] = [(source, target)]
    if steps[0] not in table:
        steps = [(source, "chat"), ("chat", target)]
    if not table.keys() >= set(steps):
        raise CodecError(f"{source} calls cannot be turned into {target} calls")
    for step in steps:
        value = _checked(source, table[step], value)
    return value


def _checked(source: Protocol, function: Callable[..., T], *args: Any) -> T:
    """Call a function of the codec, which takes it that a value has its protocol's types."""
    try:
        return function(*args)
    except CodecError:
        raise
    except MALFORMED as error:
        raise CodecError(
            f"a field does not have the type that {source} calls have: "
            f"{type(error).__name__}: {error!s:.200}"
        ) from error


def _lost(
    named: Callable[[Protocol, Protocol, Json], list[str]],
    table: dict[_Pair, Callable[[Json], Json]],
    source: Protocol,
    target: Protocol,
    value: Json,
) -> list[str]:
    if source == target:
        return []
    if "chat" in (source, target):
        return _checked(source, named, source, target, value)
    first = _checked(source, named, source, "chat", value)
    value = _translate(table, source, "chat", value)
    return sorted({*first, *_checked(source, named, "chat", target, value)})
