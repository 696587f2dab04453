"""Translation of responses between Anthropic's Messages and OpenAI's chat."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from agl_core.genai._parts import (
    answer_text,
    as_list,
    calls_in,
    count_at,
    finish_reason_in,
    first_choice,
    function_of,
    is_signed,
    object_at,
    objects_in,
    parse_arguments,
    thinking_blocks,
    write_arguments,
)
from agl_core.genai._wire import Json

__all__ = [
    "finish_reason_of",
    "recorded_end",
    "recorded_finish",
    "response_from_messages",
    "response_lost_from_chat",
    "response_lost_to_chat",
    "response_to_messages",
    "stop_of",
    "usage_from_messages",
    "usage_to_messages",
]

_STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_FINISH_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_PROMPT_DETAILS: Final = {
    "cache_read_input_tokens": "cached_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


def stop_of(choice: Json, *, called: bool, request: Json | None = None) -> Json:
    """Return ``stop_reason`` and ``stop_sequence`` of a finished chat choice.

    Args:
        choice: The choice.
        called: Whether its message has tool calls. Servers end a forced tool with ``stop``.
        request: The agent's request of Messages.
    """
    reason = finish_reason_in(choice)
    if called and reason not in ("length", "content_filter", None):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    matched = _matched_stop(choice, request)
    if reason == "stop" and matched is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    known = None if reason is None else _STOP_REASONS.get(reason, "end_turn")
    return {"stop_reason": known, "stop_sequence": None}


def _matched_stop(choice: Json, request: Json | None) -> str | None:
    """Return the stop string that ended the text of a choice; None for another end.

    vLLM has it as ``stop_reason``. SGLang has it as ``matched_stop``, where the end of a template's
    turn may be, too, which the agent did not ask for.
    """
    named, matched = choice.get("stop_reason"), choice.get("matched_stop")
    if isinstance(named, str):
        return named
    asked = [matched] if request is None else as_list(request.get("stop_sequences"))
    return matched if isinstance(matched, str) and matched in asked else None


def finish_reason_of(message: Json) -> Json:
    """Return ``finish_reason`` (and vLLM's ``stop_reason``) of a finished message."""
    finish, reason = recorded_finish(message), message.get("stop_reason")
    known = finish is None or finish in _STOP_REASONS
    found: Json = {"finish_reason": finish if known else "stop"}
    if finish == "stop" and reason == "stop_sequence" and message.get("stop_sequence") is not None:
        found["stop_reason"] = message["stop_sequence"]
    return found


def recorded_finish(message: Json) -> str | None:
    """Return the finish reason in chat; one that chat does not have stays as it is."""
    reason = message.get("stop_reason") or None
    called = any(b.get("type") == "tool_use" for b in objects_in(message.get("content")))
    if called and reason in ("end_turn", "stop_sequence"):
        return "tool_calls"
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def recorded_end(message: Json) -> Json:
    """Return the end of a message in chat: the finish reason, and what that does not have.

    ``stop_reason`` is the stop sequence, as in vLLM; ``native_finish_reason``, as in OpenRouter, is
    the message's own reason where the finish reason does not lead back to it.
    """
    reason = message.get("stop_reason") or None
    end: Json = {"finish_reason": recorded_finish(message)}
    if message.get("stop_sequence") is not None:
        end["stop_reason"] = message["stop_sequence"]
    called = end["finish_reason"] == "tool_calls"
    if reason not in (end["finish_reason"], stop_of(end, called=called)["stop_reason"]):
        end["native_finish_reason"] = reason
    return end


def usage_to_messages(usage: Json) -> Json:
    """Return usage for Messages, where input tokens do not include those of a cache."""
    prompt = object_at(usage, "prompt_tokens_details")
    cached, written = count_at(prompt, "cached_tokens"), count_at(prompt, "cache_write_tokens")
    thought = count_at(object_at(usage, "completion_tokens_details"), "reasoning_tokens")
    made: Json = {
        # Some servers count cached tokens apart.
        "input_tokens": max(0, count_at(usage, "prompt_tokens") - cached - written),
        "output_tokens": count_at(usage, "completion_tokens"),
    }
    if cached:
        made["cache_read_input_tokens"] = cached
    if written:
        made["cache_creation_input_tokens"] = written
    if thought:
        made["output_tokens_details"] = {"thinking_tokens": thought}
    return made


def usage_from_messages(usage: Json) -> Json:
    """Return usage for chat, where prompt tokens include those of a cache."""
    cached = count_at(usage, "cache_read_input_tokens")
    written = count_at(usage, "cache_creation_input_tokens")
    prompt = count_at(usage, "input_tokens") + cached + written
    completion = count_at(usage, "output_tokens")
    made: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    known = (pair for pair in _PROMPT_DETAILS.items() if usage.get(pair[0]) is not None)
    details = {new: count_at(usage, old) for old, new in known}
    if details:
        made["prompt_tokens_details"] = details
    thoughts = object_at(usage, "output_tokens_details")
    if thoughts.get("thinking_tokens") is not None:
        thought = count_at(thoughts, "thinking_tokens")
        made["completion_tokens_details"] = {"reasoning_tokens": thought}
    return made


def response_to_messages(response: Json, request: Json | None = None) -> Json:
    """Return the first choice of a chat completion as a message.

    Args:
        response: The completion.
        request: The agent's request of Messages.
    """
    choice = first_choice(response)
    chat_message = object_at(choice, "message")
    content = thinking_blocks(chat_message)
    text = answer_text(chat_message)[0] or chat_message.get("refusal")
    if text:
        content.append({"type": "text", "text": text})
    calls = calls_in(chat_message)
    for number, call in enumerate(calls):
        name, arguments = function_of(call)
        call_id = call.get("id") or f"toolu_{response.get('id') or 'call'}_{number}"
        content.append(
            {
                "type": "tool_use",
                "id": call_id,
                "name": name or "",
                "input": parse_arguments(arguments),
            }
        )
    return {
        "id": response.get("id"),
        "type": "message",
        "role": "assistant",
        "model": response.get("model"),
        "content": content,
        **stop_of(choice, called=bool(calls), request=request),
        "usage": usage_to_messages(object_at(response, "usage")),
    }


def response_from_messages(message: Json) -> Json:
    """Return a message as a chat completion."""
    text: list[str] = []
    thoughts: list[str] = []
    signed: list[Json] = []
    calls: list[Json] = []
    for block in objects_in(message.get("content")):
        if is_signed(block):
            signed.append(block)
        kind = block.get("type")
        if kind == "text":
            text.append(block.get("text") or "")
        elif kind == "thinking":
            thoughts.append(block.get("thinking") or "")
        elif kind == "tool_use":
            function = {"name": block["name"], "arguments": write_arguments(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        # Other blocks belong to Anthropic's own tools and are not the model's output.
    chat_message: Json = {"role": "assistant", "content": "".join(text) if text else None}
    if thoughts:
        chat_message["reasoning_content"] = "".join(thoughts)
    if signed:
        chat_message["thinking_blocks"] = signed
    if calls:
        chat_message["tool_calls"] = calls
    choice: dict[str, Any] = {"index": 0, "message": chat_message, "logprobs": None}
    return {
        "id": message.get("id"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": message.get("model"),
        "choices": [{**choice, **finish_reason_of(message)}],
        "usage": usage_from_messages(object_at(message, "usage")),
    }


# -- what is lost ----------------------------------------------------------------------------------


def response_lost_to_chat(response: Json) -> Iterator[str]:
    """Yield the names of a message's fields that chat does not have."""
    for block in as_list(response.get("content")):
        kind = block.get("type")
        if kind not in ("text", "thinking", "redacted_thinking", "tool_use"):
            yield str(kind)
        elif block.get("citations"):
            yield "citations"


def response_lost_from_chat(response: Json) -> Iterator[str]:
    """Yield the names of a chat completion's fields that Messages does not have."""
    if len(as_list(response.get("choices"))) > 1:
        yield "choices"
    if any("extra_content" in c for c in calls_in(object_at(first_choice(response), "message"))):
        yield "tool_calls.extra_content"
