"""Replies in OpenAI's Responses format, whole and as server-sent events.

Format: OpenAI API reference, "Responses" and "Streaming events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agl_scripted.script import Reply, prompt_tokens, tokenize

__all__ = ["response", "response_stream"]


def response(request: Mapping[str, Any], reply: Reply, response_id: str) -> dict[str, Any]:
    """Return a whole response object."""
    output: list[dict[str, Any]] = []
    if reply.text or not reply.tool_calls:
        output.append(_message(reply.text, "completed"))
    output += [_call(index, reply) for index in range(len(reply.tool_calls))]
    prompt, completion = len(prompt_tokens(request)), len(reply.tokens)
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
    truncated = reply.finish == "length"
    return {
        **_head(request, response_id, "incomplete" if truncated else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "output": output,
        "usage": usage,
    }


def response_stream(
    request: Mapping[str, Any], reply: Reply, response_id: str
) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed response; each has its ``type`` and ``sequence_number``."""
    for number, event in enumerate(_events(request, reply, response_id)):
        yield {**event, "sequence_number": number}


def _head(request: Mapping[str, Any], response_id: str, status: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_700_000_000,
        "model": request.get("model"),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": request.get("instructions"),
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": request.get("tools") or [],
        "top_p": 1.0,
        "usage": None,
    }


def _message(text: str, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content if status == "completed" else [],
    }


def _call(index: int, reply: Reply) -> dict[str, Any]:
    call = reply.tool_calls[index]
    return {
        "id": f"fc_{index + 1}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": json.dumps(dict(call.arguments)),
    }


def _events(request: Mapping[str, Any], reply: Reply, response_id: str) -> Iterator[dict[str, Any]]:
    started = _head(request, response_id, "in_progress")
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    index = 0
    if reply.text or not reply.tool_calls:
        where = {"output_index": index, "item_id": "msg_1", "content_index": 0}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": _message("", "in_progress"),
        }
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield {"type": "response.content_part.added", **where, "part": part}
        for token in tokenize(reply.text):
            yield {
                "type": "response.output_text.delta",
                **where,
                "delta": token.text,
                "logprobs": [],
            }
        yield {"type": "response.output_text.done", **where, "text": reply.text, "logprobs": []}
        done = _message(reply.text, "completed")
        yield {"type": "response.content_part.done", **where, "part": done["content"][0]}
        yield {"type": "response.output_item.done", "output_index": index, "item": done}
        index += 1
    for number in range(len(reply.tool_calls)):
        call = _call(number, reply)
        where = {"output_index": index, "item_id": call["id"]}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**call, "status": "in_progress", "arguments": ""},
        }
        yield {
            "type": "response.function_call_arguments.delta",
            **where,
            "delta": call["arguments"],
        }
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "name": call["name"],
            "arguments": call["arguments"],
        }
        yield {"type": "response.output_item.done", "output_index": index, "item": call}
        index += 1
    whole = response(request, reply, response_id)
    yield {"type": f"response.{whole['status']}", "response": whole}
