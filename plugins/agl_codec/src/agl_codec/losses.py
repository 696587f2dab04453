"""What a translation leaves out.

A request whose meaning would change is refused (:class:`~agl_codec.CodecError`). What is
merely left out, since the other protocol has no word for it, is named here, and the call's span
says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from agl_codec.messages_request import UNSAID_BY_CHAT as MESSAGES_UNSAID
from agl_codec.messages_request import said_by_messages
from agl_codec.parts import as_list, inner, signed_blocks
from agl_codec.responses_request import UNSAID_BY_CHAT as RESPONSES_UNSAID
from agl_codec.responses_request import said_by_responses
from agl_core.genai import Json, Protocol

__all__ = ["request_losses", "response_losses"]

_BOOK_KEEPING: Final = frozenset({"metadata", "n", "service_tier", "store", "stream_options"})
"""Changes no answer."""


def request_losses(source: Protocol, target: Protocol, request: Json) -> list[str]:
    """Return the names of what a request says and its translation does not, sorted.

    Args:
        source: What the request is written in.
        target: What it is translated to; one step, from chat or to it.
        request: It.
    """
    return sorted(set(_REQUESTS[source, target](request)))


def response_losses(source: Protocol, target: Protocol, response: Json) -> list[str]:
    """Return the names of what a response says and its translation does not, sorted."""
    return sorted(set(_RESPONSES[source, target](response)))


# -- requests --------------------------------------------------------------------------------------


def _messages_to_chat(request: Json) -> Iterator[str]:
    yield from (key for key in MESSAGES_UNSAID if request.get(key) is not None)
    if inner(request, "output_config").get("effort") is not None:
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
    yield from (key for key in RESPONSES_UNSAID if request.get(key) is not None)
    for item in _objects(request.get("input")):
        if item.get("type") == "reasoning" and item.get("encrypted_content"):
            yield "reasoning.encrypted_content"


def _chat_to_messages(request: Json) -> Iterator[str]:
    yield from _unsaid(request, said_by_messages)
    for message in as_list(request.get("messages")):
        if message.get("reasoning_content") and not signed_blocks(message):
            yield "reasoning_content"  # Anthropic takes back only what it has signed


def _chat_to_responses(request: Json) -> Iterator[str]:
    yield from _unsaid(request, said_by_responses)
    for message in as_list(request.get("messages")):
        if signed_blocks(message):
            yield "thinking.signature"


def _objects(content: Any) -> list[Json]:
    """Return the parts of content that is no mere text."""
    return [part for part in as_list(content) if isinstance(part, dict)]


def _unsaid(request: Json, said: Callable[[str], bool]) -> Iterator[str]:
    for key, value in request.items():
        if value not in (None, False) and key not in _BOOK_KEEPING and not said(key):
            yield key


# -- responses -------------------------------------------------------------------------------------


def _messages_said(response: Json) -> Iterator[str]:
    for block in as_list(response.get("content")):
        kind = block.get("type")
        if kind not in ("text", "thinking", "redacted_thinking", "tool_use"):
            yield str(kind)
        elif block.get("citations"):
            yield "citations"


def _responses_said(response: Json) -> Iterator[str]:
    for item in as_list(response.get("output")):
        kind = item.get("type")
        if kind not in ("message", "function_call", "reasoning"):
            yield str(kind)
        elif item.get("encrypted_content"):
            yield "reasoning.encrypted_content"
        for part in as_list(item.get("content")):
            if part.get("annotations"):
                yield "annotations"


def _chat_said(response: Json) -> Iterator[str]:
    if len(as_list(response.get("choices"))) > 1:
        yield "choices"


def _chat_said_to_responses(response: Json) -> Iterator[str]:
    yield from _chat_said(response)
    for choice in as_list(response.get("choices")):
        if signed_blocks(inner(choice, "message")):
            yield "thinking.signature"


_Names = Callable[[Json], Iterator[str]]
_REQUESTS: Final[dict[tuple[Protocol, Protocol], _Names]] = {
    ("messages", "chat"): _messages_to_chat,
    ("responses", "chat"): _responses_to_chat,
    ("chat", "messages"): _chat_to_messages,
    ("chat", "responses"): _chat_to_responses,
}
_RESPONSES: Final[dict[tuple[Protocol, Protocol], _Names]] = {
    ("messages", "chat"): _messages_said,
    ("responses", "chat"): _responses_said,
    ("chat", "messages"): _chat_said,
    ("chat", "responses"): _chat_said_to_responses,
}
