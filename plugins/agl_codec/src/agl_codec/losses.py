"""Names the fields that a translation leaves out.

A request whose meaning would change is refused (:class:`~agl_codec.CodecError`). A field without an
equivalent in the other protocol is left out. These functions return the names of such fields, and
the proxy records them in the call's span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from agl_codec.messages_request import UNSUPPORTED_BY_CHAT as NOT_FROM_MESSAGES
from agl_codec.messages_request import messages_supports
from agl_codec.parts import as_list, object_at, signed_blocks
from agl_codec.responses_request import UNSUPPORTED_BY_CHAT as NOT_FROM_RESPONSES
from agl_codec.responses_request import responses_supports
from agl_core.genai import Json, Protocol

__all__ = ["request_losses", "response_losses"]

_WITHOUT_EFFECT: Final = frozenset({"metadata", "n", "service_tier", "store", "stream_options"})
"""Fields that do not change a response; leaving them out is not reported."""


def request_losses(source: Protocol, target: Protocol, request: Json) -> list[str]:
    """Return the sorted names of the fields that the translation of a request leaves out.

    Args:
        source: Protocol of the request.
        target: Protocol to translate to. One of the two is chat.
        request: The request.
    """
    return sorted(set(_REQUESTS[source, target](request)))


def response_losses(source: Protocol, target: Protocol, response: Json) -> list[str]:
    """Return the sorted names of the fields that the translation of a response leaves out."""
    return sorted(set(_RESPONSES[source, target](response)))


# -- requests --------------------------------------------------------------------------------------


def _messages_to_chat(request: Json) -> Iterator[str]:
    yield from (key for key in NOT_FROM_MESSAGES if request.get(key) is not None)
    if object_at(request, "output_config").get("effort") is not None:
        yield "output_config.effort"
    for message in as_list(request.get("messages")):
        for block in _objects(message.get("content")):
            kind = block.get("type")
            if kind == "tool_result" and block.get("is_error"):
                yield "tool_result.is_error"
            elif kind == "thinking" and block.get("signature"):
                yield "thinking.signature"
            elif kind == "redacted_thinking":
                yield "redacted_thinking"


def _responses_to_chat(request: Json) -> Iterator[str]:
    yield from (key for key in NOT_FROM_RESPONSES if request.get(key) is not None)
    for item in _objects(request.get("input")):
        if item.get("type") == "reasoning" and item.get("encrypted_content"):
            yield "reasoning.encrypted_content"


def _chat_to_messages(request: Json) -> Iterator[str]:
    yield from _unsupported(request, messages_supports)
    for message in as_list(request.get("messages")):
        if message.get("reasoning_content") and not signed_blocks(message):
            yield "reasoning_content"  # Anthropic accepts only reasoning that it signed


def _chat_to_responses(request: Json) -> Iterator[str]:
    yield from _unsupported(request, responses_supports)
    for message in as_list(request.get("messages")):
        if signed_blocks(message):
            yield "thinking.signature"


def _objects(content: Any) -> list[Json]:
    """Return the parts of content that are objects, not text."""
    return [part for part in as_list(content) if isinstance(part, dict)]


def _unsupported(request: Json, supported: Callable[[str], bool]) -> Iterator[str]:
    for key, value in request.items():
        if value not in (None, False) and key not in _WITHOUT_EFFECT and not supported(key):
            yield key


# -- responses -------------------------------------------------------------------------------------


def _messages_response(response: Json) -> Iterator[str]:
    for block in as_list(response.get("content")):
        kind = block.get("type")
        if kind not in ("text", "thinking", "redacted_thinking", "tool_use"):
            yield str(kind)
        elif block.get("citations"):
            yield "citations"


def _responses_response(response: Json) -> Iterator[str]:
    for item in as_list(response.get("output")):
        kind = item.get("type")
        if kind not in ("message", "function_call", "reasoning"):
            yield str(kind)
        elif item.get("encrypted_content"):
            yield "reasoning.encrypted_content"
        for part in as_list(item.get("content")):
            if part.get("annotations"):
                yield "annotations"


def _chat_response(response: Json) -> Iterator[str]:
    if len(as_list(response.get("choices"))) > 1:
        yield "choices"


def _chat_response_to_responses(response: Json) -> Iterator[str]:
    yield from _chat_response(response)
    for choice in as_list(response.get("choices")):
        if signed_blocks(object_at(choice, "message")):
            yield "thinking.signature"


_Names = Callable[[Json], Iterator[str]]
_REQUESTS: Final[dict[tuple[Protocol, Protocol], _Names]] = {
    ("messages", "chat"): _messages_to_chat,
    ("responses", "chat"): _responses_to_chat,
    ("chat", "messages"): _chat_to_messages,
    ("chat", "responses"): _chat_to_responses,
}
_RESPONSES: Final[dict[tuple[Protocol, Protocol], _Names]] = {
    ("messages", "chat"): _messages_response,
    ("responses", "chat"): _responses_response,
    ("chat", "messages"): _chat_response,
    ("chat", "responses"): _chat_response_to_responses,
}
