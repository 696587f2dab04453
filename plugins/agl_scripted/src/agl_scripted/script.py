"""The answers of a scripted model, and the toy tokenizer that counts their tokens."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Reply", "Token", "ToolCall", "prompt_tokens", "tokenize", "write_tool_call"]


class Token(NamedTuple):
    """A piece of text with its id and its scripted log-probability."""

    text: str
    id: int
    logprob: float


def tokenize(text: str) -> list[Token]:
    """Split text into words with their leading white space; ids are stable across processes."""
    return [
        Token(piece, 100 + zlib.crc32(piece.encode()) % 50_000, -0.01 * (1 + len(piece) % 7))
        for piece in re.findall(r"\s*\S+|\s+$", text)
    ]


def prompt_tokens(request: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of a request's prompt: the JSON of its messages, input or prompt."""
    parts = [request.get(key) for key in ("system", "instructions", "messages", "input", "prompt")]
    return tokenize(" ".join(json.dumps(part) for part in parts if part is not None))


def write_tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the text with which a model calls a tool."""
    return f" <tool_call>{json.dumps({'name': name, 'arguments': dict(arguments)})}</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = "call_1"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a scripted model.

    Attributes:
        text: Its text; may be empty if there are tool calls.
        tool_calls: Its tool calls.
        others: Texts of further choices, in OpenAI's chat protocol (``n`` of the request).
        finish_reason: OpenAI's value; None means ``tool_calls`` with tool calls, else ``stop``.
        error_status: HTTP status of an error to answer with instead; 0 for none.
        error_message: The error's message.
        headers: Further HTTP headers of the reply, e.g. ``retry-after``.
        delay: Seconds before the first byte.
        chunk_delay: Seconds between the chunks of a stream.
        drop_after: Cut the connection after this many chunks of a stream (or, with 0, before any
            byte of any reply); None: never.
        garbage: Send these bytes as the body instead of a reply.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    others: Sequence[str] = ()
    finish_reason: str | None = None
    error_status: int = 0
    error_message: str = "scripted error"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0
    chunk_delay: float = 0.0
    drop_after: int | None = None
    garbage: bytes | None = None

    @property
    def tokens(self) -> list[Token]:
        """All tokens that the model generated, tool calls included."""
        calls = [write_tool_call(call.name, call.arguments) for call in self.tool_calls]
        return tokenize(self.text + "".join(calls))

    @property
    def finish(self) -> str:
        """OpenAI's finish reason."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")
