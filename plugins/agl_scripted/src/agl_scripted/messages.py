"""Replies in Anthropic's Messages format, whole and as server-sent events.

Format: Anthropic API reference, "Messages" and "Streaming messages".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agl_scripted.script import Reply, prompt_tokens, tokenize

__all__ = ["error", "message", "message_stream"]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def error(reply: Reply) -> dict[str, Any]:
    """Return Anthropic's error body."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(reply.error_status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": reply.error_message}}


def message(request: Mapping[str, Any], reply: Reply, response_id: str) -> dict[str, Any]:
    """Return a whole message."""
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": _blocks(reply),
        "stop_reason": _STOP_REASONS.get(reply.finish, reply.finish),
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(prompt_tokens(request)),
            "output_tokens": len(reply.tokens),
        },
    }


def message_stream(
    request: Mapping[str, Any], reply: Reply, response_id: str
) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed message."""
    whole = message(request, reply, response_id)
    start = {**whole, "content": [], "stop_reason": None}
    start["usage"] = {**whole["usage"], "output_tokens": 0}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(whole["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
        "usage": {"output_tokens": whole["usage"]["output_tokens"]},
    }
    yield {"type": "message_stop"}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.text or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in reply.tool_calls
    ]
    return blocks


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        for token in tokenize(block["text"]):
            yield {"type": "text_delta", "text": token.text}
    else:
        text = json.dumps(block["input"])
        for start in range(0, len(text), 8):
            yield {"type": "input_json_delta", "partial_json": text[start : start + 8]}
