"""Translation of requests between OpenAI's Responses and chat.

Format: OpenAI API reference, "Create a model response" and "Create chat completion". A Responses
server can store conversations and run tools. Chat has neither, so such requests are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from agl_core.genai._errors import CodecError
from agl_core.genai._parts import (
    as_list,
    as_part,
    copy_keys,
    function_of,
    object_at,
    objects_in,
    signed_blocks,
    simplify_content,
    unsupported,
    write_arguments,
)
from agl_core.genai._turns import chat_turns, late_instructions, with_call_ids
from agl_core.genai._wire import Json
from agl_core.genai.responses._tools import ToolForms, chat_tools, custom_arguments, lost_tools

__all__ = [
    "lost_from_chat",
    "lost_to_chat",
    "request_from_responses",
    "request_to_responses",
]

_SAME: Final = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "stream": "stream",
    "parallel_tool_calls": "parallel_tool_calls",
    "user": "user",
    "top_logprobs": "top_logprobs",
}
_TO_CHAT: Final = {**_SAME, "max_output_tokens": "max_tokens"}
_NOT_FOR_CHAT: Final = frozenset(
    {
        "access_programs",
        "background_options",
        "client_metadata",
        "context_management",
        "image",
        "include",
        "input",
        "instructions",
        "max_tool_calls",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "truncation",
    }
)
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt", "background")
_UNSUPPORTED_BY_CHAT: Final = ("context_management", "image", "max_tool_calls", "truncation")
"""Parameters that change a response and have no equivalent in chat."""
_CONVERTED: Final = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "reasoning_effort",
        "response_format",
        "tool_choice",
        "tools",
        "verbosity",
    }
)
_HOSTED_ITEMS: Final = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
_LOGPROBS: Final = "message.output_text.logprobs"


# -- to chat -------------------------------------------------------------------------------------


def request_from_responses(request: Json) -> Json:
    """Return a Responses request as a chat request.

    Raises:
        CodecError: The request needs a stored conversation or a tool of the server, or has content
        without an equivalent in chat.
    """
    for key in _STATEFUL:
        if request.get(key):
            raise CodecError(
                f"{key!r} needs a backend that speaks Responses itself; send the input"
            )
    chat = {
        key: value
        for key, value in request.items()
        if key not in _NOT_FOR_CHAT
        and key not in _TO_CHAT
        and key not in _STATEFUL
        and value is not None
    }
    chat |= copy_keys(request, _TO_CHAT)
    messages: list[Json] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    given = request.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given)
    forms = ToolForms(request)
    chat["messages"] = chat_turns([*messages, *_messages(items, forms)])
    tools, choice = _allowed(chat_tools(request), request.get("tool_choice"), forms)
    if tools:
        chat["tools"] = tools
    if choice is not None and (tools or not request.get("tools")):
        chat["tool_choice"] = choice if isinstance(choice, str) else _choice_to_chat(choice, forms)
    if not tools:
        chat.pop("parallel_tool_calls", None)  # servers refuse it without tools
    effort = object_at(request, "reasoning").get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    text: Json = request.get("text") or {}
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    wanted: Json = text.get("format") or {"type": "text"}
    if wanted.get("type") == "json_schema":
        schema = {key: value for key, value in wanted.items() if key != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted.get("type") != "text":
        chat["response_format"] = wanted
    if _LOGPROBS in (request.get("include") or ()) or request.get("top_logprobs"):
        chat["logprobs"] = True  # servers refuse top_logprobs without it
    if request.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a Responses stream always contains usage
    return chat


def _messages(items: list[Any], forms: ToolForms) -> Iterator[Json]:
    """Yield a message for each item of the input; those of one turn are neighbours."""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            yield {"role": item.get("role"), "content": _content_to_chat(item.get("content"))}
        elif kind in ("function_call", "custom_tool_call"):
            arguments = write_arguments(item.get("arguments") or "")
            if kind == "custom_tool_call":
                arguments = custom_arguments(item.get("input") or "")
            function = {"name": forms.name(item), "arguments": arguments}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            content = output if isinstance(output, str) else _content_to_chat(output)
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        elif kind == "reasoning":
            thoughts = "".join(part.get("text", "") for part in _thoughts(item))
            if thoughts:  # only OpenAI can read encrypted reasoning
                yield {"role": "assistant", "content": None, "reasoning_content": thoughts}
        elif not _is_hosted(kind):
            raise CodecError(f"chat has no equivalent of an input item of type {kind!r}")


def _is_hosted(kind: Any) -> bool:
    """Return whether an item records what a tool of the server did in an earlier turn."""
    return str(kind) in _HOSTED_ITEMS


def _thoughts(item: Json) -> list[Json]:
    return as_list(item.get("content")) or as_list(item.get("summary"))


def _content_to_chat(content: Any) -> Any:
    if isinstance(content, str) or content is None:
        return content
    return simplify_content([_part_to_chat(as_part(part)) for part in as_list(content)])


def _part_to_chat(part: Json) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal", "")}
    if kind == "input_image" and part.get("image_url"):
        image = copy_keys(part, {"image_url": "url", "detail": "detail"})
        return {"type": "image_url", "image_url": image}
    if kind == "input_file" and part.get("file_data"):
        names = {"file_data": "file_data", "filename": "filename"}
        return {"type": "file", "file": copy_keys(part, names)}
    raise CodecError(f"chat has no equivalent of a content part of type {kind!r}")


def _allowed(tools: list[Json], choice: Any, forms: ToolForms) -> tuple[list[Json], Any]:
    """Return the tools that a choice allows, and the choice among them."""
    allowed = cast("Json", choice) if isinstance(choice, dict) else {}
    if allowed.get("type") != "allowed_tools":
        return tools, cast("Any", choice)
    named = {forms.name(one) for one in objects_in(allowed.get("tools"))}
    return [tool for tool in tools if tool["function"]["name"] in named], allowed.get("mode")


def _function(tool: Json) -> Json:
    names = ("name", "description", "parameters", "strict")
    return copy_keys(tool, {name: name for name in names})


def _choice_to_chat(choice: Json, forms: ToolForms) -> Json:
    if choice.get("type") not in ("function", "custom"):
        raise CodecError(f"chat has no equivalent of the tool choice {choice!r:.80}")
    return {"type": "function", "function": {"name": forms.name(choice)}}


def _choice_from_chat(choice: Json) -> Json:
    if choice.get("type") != "function":
        raise CodecError(f"Responses has no equivalent of the tool choice {choice!r:.80}")
    return {"type": "function", "name": choice["function"]["name"]}


# -- from chat -----------------------------------------------------------------------------------


def request_to_responses(request: Json) -> Json:
    """Return a chat request as a Responses request.

    Raises:
        CodecError: The request asks for several choices, or has content without an equivalent.
    """
    if (request.get("n") or 1) != 1:
        raise CodecError("Responses returns one answer per call: n must be 1")
    made = copy_keys(request, _SAME)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None:
        made["max_output_tokens"] = limit
    items: list[Json] = []
    for message in with_call_ids(as_list(request.get("messages"))):
        items += _items(message)
    made["input"] = items
    made["store"] = False  # a chat call stores nothing at the server
    if request.get("tools"):
        made["tools"] = [_tool_from_chat(tool) for tool in request["tools"]]
    choice = request.get("tool_choice")
    if choice is not None:
        made["tool_choice"] = choice if isinstance(choice, str) else _choice_from_chat(choice)
    if request.get("reasoning_effort") is not None:
        made["reasoning"] = {"effort": request["reasoning_effort"]}
    text: Json = copy_keys(request, {"verbosity": "verbosity"})
    wanted: Json = request.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        text["format"] = {"type": "json_schema", **wanted["json_schema"]}
    elif wanted:
        text["format"] = wanted
    if text:
        made["text"] = text
    if request.get("logprobs"):
        made["include"] = [_LOGPROBS]
    return made


def _items(message: Json) -> list[Json]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else _content_from_chat(content, "input_text")
        called = message.get("tool_call_id")
        return [{"type": "function_call_output", "call_id": called, "output": output}]
    items: list[Json] = []
    if message.get("reasoning_content"):
        part = {"type": "reasoning_text", "text": message["reasoning_content"]}
        items.append({"type": "reasoning", "summary": [], "content": [part]})
    if message.get("refusal"):
        refusal = {"type": "refusal", "refusal": message["refusal"]}
        content = [*as_list(content or None), refusal]
    if content not in (None, []):
        kind = "output_text" if role == "assistant" else "input_text"
        found = content if isinstance(content, str) else _content_from_chat(content, kind)
        items.append({"type": "message", "role": role, "content": found})
    for call in as_list(message.get("tool_calls")):
        name, arguments = function_of(call)
        made = {"call_id": call.get("id"), "name": name}
        if call.get("type") == "custom":
            items.append({"type": "custom_tool_call", **made, "input": arguments})
        else:
            items.append({"type": "function_call", **made, "arguments": arguments})
    return items


def _content_from_chat(content: Any, text: str) -> list[Json]:
    parts: list[Json] = []
    for part in map(as_part, as_list(content)):
        kind = part.get("type")
        if kind == "text":
            parts.append({"type": text, "text": part["text"]})
        elif kind == "refusal":
            parts.append({"type": "refusal", "refusal": part["refusal"]})
        elif kind == "image_url":
            image = object_at(part, "image_url") or {"url": part["image_url"]}
            names = {"url": "image_url", "detail": "detail"}
            parts.append({"type": "input_image", **copy_keys(image, names)})
        elif kind == "file":
            names = {"file_data": "file_data", "file_id": "file_id", "filename": "filename"}
            parts.append({"type": "input_file", **copy_keys(part["file"], names)})
        else:
            raise CodecError(f"Responses has no equivalent of a content part of type {kind!r}")
    return parts


def _tool_from_chat(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise CodecError(f"Responses has no equivalent of a tool of type {tool.get('type')!r}")
    # Responses is strict without the field, and refuses schemas that chat accepts.
    return {"type": "function", "strict": False, **_function(tool["function"])}


# -- what is lost ----------------------------------------------------------------------------------


def lost_to_chat(request: Json) -> Iterator[str]:
    """Yield the names of a Responses request's fields that chat does not have."""
    yield from (key for key in _UNSUPPORTED_BY_CHAT if request.get(key) is not None)
    yield from (f"tools.{kind}" for kind in lost_tools(request))
    items = objects_in(request.get("input"))
    for item in items:
        if item.get("type") == "reasoning" and item.get("encrypted_content"):
            yield "reasoning.encrypted_content"
        elif _is_hosted(item.get("type")):
            yield f"input.{item['type']}"
    if late_instructions(items):
        yield "input.role"  # a late instruction became a user's message


def lost_from_chat(request: Json) -> Iterator[str]:
    """Yield the names of a chat request's fields that Responses does not have."""
    yield from unsupported(request, {*_SAME, *_CONVERTED})
    for message in as_list(request.get("messages")):
        if signed_blocks(message):
            yield "thinking.signature"
        if message.get("audio"):
            yield "messages.audio"
