"""Translation of responses between OpenAI's Responses and chat."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, cast

from agl_core.genai._parts import (
    answer_text,
    as_list,
    calls_in,
    copy_keys,
    count_at,
    first_choice,
    function_of,
    object_at,
    objects_in,
    signed_blocks,
    write_arguments,
)
from agl_core.genai._wire import Json
from agl_core.genai.responses._tools import ToolForms

__all__ = [
    "finish_of",
    "output_items",
    "recorded_finish",
    "response_from_responses",
    "response_head",
    "response_lost_from_chat",
    "response_lost_to_chat",
    "response_to_responses",
    "usage_from_responses",
    "usage_to_responses",
]

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_CALLS: Final = ("function_call", "custom_tool_call")
_FINISH: Final = {value: key for key, value in _INCOMPLETE.items()}
_FINISHES: Final = frozenset({*_INCOMPLETE, "stop", "tool_calls"})
_INPUT_DETAILS: Final = {name: name for name in ("cached_tokens", "cache_write_tokens")}
_OUTPUT_DETAILS: Final = {"reasoning_tokens": "reasoning_tokens"}
"""Counts of tokens that usage of Responses and of chat share."""


def usage_to_responses(usage: Any) -> Json | None:
    """Return usage in the form of Responses; None for none."""
    if not isinstance(usage, dict):
        return None
    usage = cast("Json", usage)
    prompt = object_at(usage, "prompt_tokens_details")
    completion = object_at(usage, "completion_tokens_details")
    thought = count_at(completion, "reasoning_tokens")
    return {
        "input_tokens": count_at(usage, "prompt_tokens"),
        "input_tokens_details": {key: count_at(prompt, key) for key in _INPUT_DETAILS},
        "output_tokens": count_at(usage, "completion_tokens"),
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": count_at(usage, "total_tokens"),
    }


def usage_from_responses(usage: Any, *, zeros: bool = False) -> Json | None:
    """Return usage in the form of chat; None for none.

    Args:
        usage: The usage.
        zeros: Whether details of 0 are kept, which a response has where its server knows none.
    """
    if not isinstance(usage, dict):
        return None
    usage = cast("Json", usage)
    made: Json = {
        "prompt_tokens": count_at(usage, "input_tokens"),
        "completion_tokens": count_at(usage, "output_tokens"),
        "total_tokens": count_at(usage, "total_tokens"),
    }
    for found, key, names in (
        ("input_tokens_details", "prompt_tokens_details", _INPUT_DETAILS),
        ("output_tokens_details", "completion_tokens_details", _OUTPUT_DETAILS),
    ):
        details = copy_keys(object_at(usage, found), names)
        kept = {name: count for name, count in details.items() if count or zeros}
        if kept:
            made[key] = kept
    return made


def response_head(response: Json, status: str) -> Json:
    """Return a response without its output."""
    return {
        "id": response.get("id"),
        "object": "response",
        "created_at": response.get("created") or int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": response.get("model"),
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def response_to_responses(response: Json, tools: ToolForms | None = None) -> Json:
    """Return a chat completion as a response; of several choices, the first.

    Args:
        response: The completion.
        tools: The tools of the agent's request, in whose form calls are returned.
    """
    choice = first_choice(response)
    reason = _INCOMPLETE.get(choice.get("finish_reason") or "")
    head = response_head(response, "incomplete" if reason else "completed")
    return {
        **head,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output_items(response, choice, tools),
        "usage": usage_to_responses(response.get("usage")),
    }


def output_items(response: Json, choice: Json, tools: ToolForms | None = None) -> list[Json]:
    """Return a chat choice as output items, with ids derived from the response's id."""
    message = object_at(choice, "message")
    tools = tools or ToolForms(None)
    name = response.get("id")
    items: list[Json] = []
    text, thoughts = answer_text(message)
    if thoughts:
        thought = {"type": "reasoning_text", "text": thoughts}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [thought]})
    content: list[Json] = []
    if text:
        logprobs: list[Any] = object_at(choice, "logprobs").get("content") or []
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        content.append(part)
    if message.get("refusal"):
        content.append({"type": "refusal", "refusal": message["refusal"]})
    calls = calls_in(message)
    if content or not calls:
        items.append(
            {
                "type": "message",
                "id": f"msg_{name}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for number, call in enumerate(calls):
        function, arguments = function_of(call)
        item_id = f"fc_{name}_{number}"
        items.append(
            {
                **tools.item(function or "", arguments),
                "id": item_id,
                "call_id": call.get("id") or f"call_{name}_{number}",
                "status": "completed",
            }
        )
    return items


def finish_of(response: Json) -> str | None:
    """Return the finish reason of a finished response; None if it is not finished."""
    finish = recorded_finish(response)
    return finish if finish is None or finish in _FINISHES else "length"


def recorded_finish(response: Json) -> str | None:
    """Return the finish reason in chat; one that chat does not have stays as it is."""
    status = response.get("status")
    if status not in ("completed", "incomplete"):
        return None
    reason = object_at(response, "incomplete_details").get("reason")
    if status == "incomplete" or reason:
        return _FINISH.get(reason, reason) if reason else "length"
    called = any(item.get("type") in _CALLS for item in objects_in(response.get("output")))
    return "tool_calls" if called else "stop"


def response_from_responses(response: Json) -> Json:
    """Return a response as a chat completion."""
    text: list[str] = []
    refusals: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    logprobs: list[Any] = []
    for item in objects_in(response.get("output")):
        kind = item.get("type")
        if kind == "message":
            for part in objects_in(item.get("content")):
                if part.get("type") == "refusal":
                    refusals.append(part.get("refusal") or "")
                else:
                    text.append(part.get("text") or "")
                    logprobs += part.get("logprobs") or ()
        elif kind == "function_call":
            arguments = write_arguments(item.get("arguments") or "")
            function = {"name": item.get("name"), "arguments": arguments}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "custom_tool_call":
            custom = {"name": item.get("name"), "input": item.get("input") or ""}
            calls.append({"id": item.get("call_id"), "type": "custom", "custom": custom})
        elif kind == "reasoning":
            parts = objects_in(item.get("content")) or objects_in(item.get("summary"))
            thoughts += [part.get("text") or "" for part in parts]
        # Other items belong to OpenAI's own tools and are not the model's output.
    message: Json = {"role": "assistant", "content": "".join(text) if text else None}
    if refusals:
        message["refusal"] = "".join(refusals)
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_of(response),
        "logprobs": {"content": logprobs} if logprobs else None,
    }
    return {
        "id": response.get("id"),
        "object": "chat.completion",
        "created": int(response.get("created_at") or time.time()),
        "model": response.get("model"),
        "choices": [choice],
        "usage": usage_from_responses(response.get("usage")),
    }


# -- what is lost ----------------------------------------------------------------------------------


def response_lost_to_chat(response: Json) -> Iterator[str]:
    """Yield the names of a response's fields that chat does not have."""
    for item in as_list(response.get("output")):
        kind = item.get("type")
        if kind not in ("message", "reasoning", *_CALLS):
            yield str(kind)
        elif item.get("encrypted_content"):
            yield "reasoning.encrypted_content"
        for part in as_list(item.get("content")):
            if part.get("annotations"):
                yield "annotations"


def response_lost_from_chat(response: Json) -> Iterator[str]:
    """Yield the names of a chat completion's fields that Responses does not have."""
    if len(as_list(response.get("choices"))) > 1:
        yield "choices"
    if any("extra_content" in c for c in calls_in(object_at(first_choice(response), "message"))):
        yield "tool_calls.extra_content"
    for choice in as_list(response.get("choices")):
        if signed_blocks(object_at(choice, "message")):
            yield "thinking.signature"
