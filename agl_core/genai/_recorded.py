"""Typed blocks of Anthropic's Messages and OpenAI's Responses as chat messages, for records.

The span attributes of a call have one shape, that of chat. This reading is for records only: it
never refuses a call, and it keeps content for which chat has no equivalent. So the result must not
be sent to a server.

Formats: Anthropic API reference, "Create a Message"; OpenAI API reference, "Responses".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from agl_core.genai._wire import Json, dumps

__all__ = [
    "CALLS",
    "Turn",
    "blocks_of",
    "chat_messages",
    "list_at",
    "recorded_completion",
    "recorded_tools",
    "turns_of",
]

_TEXTS: Final = frozenset({"text", "input_text", "output_text"})
CALLS: Final = frozenset({"tool_use", "function_call", "custom_tool_call"})
_RESULTS: Final = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_THOUGHTS: Final = frozenset({"thinking", "reasoning"})
_CONVERTED: Final = CALLS | _RESULTS | _THOUGHTS


Turn = tuple[str, list[Json]]
"""A role and typed blocks."""


def turns_of(items: Iterable[Any] | None) -> list[Turn]:
    """Return messages or items of Responses as turns; adjacent items of an answer are one turn."""
    turns: list[Turn] = []
    for item in items or ():
        found = _object(item)
        if "role" in found:
            turns.append((found["role"], blocks_of(found.get("content"))))
        elif found.get("type") in _RESULTS:
            turns.append(("tool", [found]))
        else:
            turns.append(("assistant", blocks_of([item])))
        if len(turns) > 1 and turns[-2][0] == turns[-1][0] == "assistant":
            turns[-2][1].extend(turns.pop()[1])
    return turns


def blocks_of(content: Any) -> list[Json]:
    items = cast("list[Any]", content if isinstance(content, list) else [content])
    return [
        cast("Json", item) if isinstance(item, dict) else {"type": "text", "text": item}
        for item in items
        if item is not None
    ]


def chat_messages(turns: Iterable[Turn]) -> list[Json]:
    """Return turns as chat messages; the result of a tool is a message of its own."""
    messages: list[Json] = []
    for role, blocks in turns:
        results = [_result(block) for block in blocks if block.get("type") in _RESULTS]
        messages += results
        if results and len(results) == len(blocks):
            continue
        calls = [_call(block) for block in blocks if block.get("type") in CALLS]
        thoughts = [_thought(block) for block in blocks if block.get("type") in _THOUGHTS]
        others = [block for block in blocks if block.get("type") not in _CONVERTED]
        message: Json = {"role": role, "content": _simplified(others)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def recorded_tools(tools: Any) -> Any:
    """Return definitions of functions in the shape of chat; other tools stay as they are."""
    if not isinstance(tools, list):
        return tools
    found: list[Any] = []
    for tool in cast("list[Any]", tools):
        value = _object(tool)
        schema = value.get("input_schema", value.get("parameters"))
        if schema is None or value.get("type") not in (None, "function", "custom"):
            found.append(tool)
            continue
        given = {"name": value.get("name"), "description": value.get("description")}
        given |= {"parameters": schema, "strict": value.get("strict")}
        function = {key: item for key, item in given.items() if item is not None}
        found.append({"type": "function", "function": function})
    return found


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
    result = _simplified(blocks_of(block.get("content", block.get("output"))))
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
    texts = list_at(block, "content") or list_at(block, "summary")
    return "".join(str(part.get("text", "")) for part in texts)


def list_at(value: Json, key: str) -> list[Any]:
    """Return the list under a key; empty if there is none."""
    found = value.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _object(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def recorded_completion(response: Json, turns: Sequence[Turn], end: Json, usage: Json) -> Json:
    """Return a response in the shape of a chat completion.

    Args:
        response: The response, whose id and model are kept.
        turns: Its content.
        end: Finish reason, as in chat, and what else a choice has on its end.
        usage: Usage, as in chat.
    """
    silent: Json = {"role": "assistant", "content": None}
    answers = [message for message in chat_messages(turns) if message["role"] == "assistant"]
    choice: Json = {"index": 0, "message": (answers or [silent])[0], **end}
    logprobs = [x for _, blocks in turns for block in blocks for x in list_at(block, "logprobs")]
    if logprobs:
        choice["logprobs"] = {"content": logprobs}
    kept = {key: response[key] for key in ("id", "model", "prompt_token_ids") if key in response}
    return {**kept, "choices": [choice], "usage": usage}
