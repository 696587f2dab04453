"""Reads calls of Anthropic's Messages and OpenAI's Responses as chat calls, to describe them.

The span attributes of a call have one shape, that of chat. This reading is for records only: it
never refuses a call, and it keeps content for which chat has no equivalent. So the result must not
be sent to a server.

Formats: Anthropic API reference, "Create a Message"; OpenAI API reference, "Responses".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from agl_core.genai._protocols import Protocol
from agl_core.genai._wire import Json, dumps

_MESSAGES_IN: Final = frozenset({"messages", "system", "input", "instructions"})
_TEXTS: Final = frozenset({"text", "input_text", "output_text"})
_CALLS: Final = frozenset({"tool_use", "function_call", "custom_tool_call"})
_RESULTS: Final = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_THOUGHTS: Final = frozenset({"thinking", "reasoning"})
_CONVERTED: Final = _CALLS | _RESULTS | _THOUGHTS
_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


_Turn = tuple[str, list[Json]]
"""A role and typed blocks."""


def request_as_chat(protocol: Protocol, request: Json) -> Json:
    """Return a request in the shape of a chat request; other parameters keep their names."""
    if protocol == "messages":
        turns = _turns(_list(request, "messages"))
        system = request.get("system")
    elif protocol == "responses":
        given: Any = request.get("input")
        turns = _turns([{"role": "user", "content": given}] if isinstance(given, str) else given)
        system = request.get("instructions")
    else:
        return request
    if system:
        turns.insert(0, ("system", _blocks(system)))
    rest = {key: value for key, value in request.items() if key not in _MESSAGES_IN}
    return {**rest, "messages": _messages(turns)}


def response_as_chat(protocol: Protocol, response: Json) -> Json:
    """Return a response in the shape of a chat completion."""
    if protocol == "messages":
        turns: list[_Turn] = [("assistant", _blocks(response.get("content")))]
        reason = response.get("stop_reason")
        finish = None if reason is None else _FINISH.get(reason, reason)
    elif protocol == "responses":
        turns = _turns(response.get("output"))
        finish = _finish_of(response)
    else:
        return response
    silent: Json = {"role": "assistant", "content": None}
    answers = [message for message in _messages(turns) if message["role"] == "assistant"]
    choice: Json = {"index": 0, "message": (answers or [silent])[0], "finish_reason": finish}
    logprobs = [x for _, blocks in turns for block in blocks for x in _list(block, "logprobs")]
    if logprobs:
        choice["logprobs"] = {"content": logprobs}
    kept = {key: response[key] for key in ("id", "model", "prompt_token_ids") if key in response}
    usage = _usage(protocol, _object(response.get("usage")))
    return {**kept, "choices": [choice], "usage": usage}


def _turns(items: Iterable[Any] | None) -> list[_Turn]:
    """Return messages or items of Responses as turns; adjacent items of an answer are one turn."""
    turns: list[_Turn] = []
    for item in items or ():
        found = _object(item)
        if "role" in found:
            turns.append((found["role"], _blocks(found.get("content"))))
        elif found.get("type") in _RESULTS:
            turns.append(("tool", [found]))
        else:
            turns.append(("assistant", _blocks([item])))
        if len(turns) > 1 and turns[-2][0] == turns[-1][0] == "assistant":
            turns[-2][1].extend(turns.pop()[1])
    return turns


def _blocks(content: Any) -> list[Json]:
    items = cast("list[Any]", content if isinstance(content, list) else [content])
    return [
        cast("Json", item) if isinstance(item, dict) else {"type": "text", "text": item}
        for item in items
        if item is not None
    ]


def _messages(turns: Iterable[_Turn]) -> list[Json]:
    """Return turns as chat messages; the result of a tool is a message of its own."""
    messages: list[Json] = []
    for role, blocks in turns:
        results = [_result(block) for block in blocks if block.get("type") in _RESULTS]
        messages += results
        if results and len(results) == len(blocks):
            continue
        calls = [_call(block) for block in blocks if block.get("type") in _CALLS]
        thoughts = [_thought(block) for block in blocks if block.get("type") in _THOUGHTS]
        others = [block for block in blocks if block.get("type") not in _CONVERTED]
        message: Json = {"role": role, "content": _simplified(others)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _simplified(blocks: Iterable[Json]) -> Any:
    """Return the parts of a message; a single text as text."""
    parts = [_part(block) for block in blocks]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0].get("text")
    return parts or None


def _part(block: Json) -> Json:
    kind, source = block.get("type"), _object(block.get("source"))
    if kind in _TEXTS:
        return {"type": "text", "text": block.get("text")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": block.get("image_url")}}
    if kind == "image" and source:
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return block


def _result(block: Json) -> Json:
    result = _simplified(_blocks(block.get("content", block.get("output"))))
    call_id = block.get("tool_use_id", block.get("call_id"))
    return {"role": "tool", "tool_call_id": call_id, "content": "" if result is None else result}


def _call(block: Json) -> Json:
    arguments: Any = block.get("arguments", block.get("input"))
    if not isinstance(arguments, str):
        arguments = dumps(arguments or {}).decode()
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("call_id", block.get("id")), "type": "function", "function": function}


def _thought(block: Json) -> str:
    if "thinking" in block:
        return str(block["thinking"])
    texts = _list(block, "content") or _list(block, "summary")
    return "".join(str(part.get("text", "")) for part in texts)


def _finish_of(response: Json) -> str | None:
    status = response.get("status")
    if status == "completed":
        called = any(item.get("type") in _CALLS for item in _list(response, "output"))
        return "tool_calls" if called else "stop"
    reason = _object(response.get("incomplete_details")).get("reason")
    return None if reason is None else _FINISH.get(reason, reason)


def _usage(protocol: Protocol, usage: Json) -> Json:
    """Return usage as in chat, where the prompt's tokens include cached ones."""
    if not usage:
        return {}
    cached, thought = usage.get("cache_read_input_tokens"), None
    prompt = usage.get("input_tokens")
    if protocol == "messages":
        prompt = (prompt or 0) + (cached or 0) + (usage.get("cache_creation_input_tokens") or 0)
    else:
        cached = _object(usage.get("input_tokens_details")).get("cached_tokens")
        thought = _object(usage.get("output_tokens_details")).get("reasoning_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def _list(value: Json, key: str) -> list[Any]:
    found = value.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _object(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}
