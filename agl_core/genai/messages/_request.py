"""Translation of requests between Anthropic's Messages and OpenAI's chat.

Formats: Anthropic API reference, "Create a Message"; OpenAI API reference, "Create chat
completion".

Unknown fields, such as vLLM's ``top_k`` or ``chat_template_kwargs``, are kept on the way to chat,
whose servers accept them. They are left out on the way to Messages, since Anthropic's API refuses
unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from agl_core.genai._errors import CodecError
from agl_core.genai._parts import (
    as_list,
    as_part,
    copy_keys,
    data_url,
    function_of,
    is_signed,
    object_at,
    objects_in,
    parse_arguments,
    signed_blocks,
    simplify_content,
    split_data_url,
    text_of,
    thinking_blocks,
    unsupported,
    write_arguments,
)
from agl_core.genai._turns import (
    chat_turns,
    late_instructions,
    leading_instructions,
    with_call_ids,
)
from agl_core.genai._wire import Json

__all__ = [
    "lost_from_chat",
    "lost_to_chat",
    "request_from_messages",
    "request_to_messages",
]

_DEFAULT_MAX_TOKENS: Final = 4096
"""Messages requires a limit, chat does not."""

_SAME: Final = {name: name for name in ("model", "temperature", "top_p", "top_k", "stream")}
_TO_CHAT: Final = {**_SAME, "max_tokens": "max_tokens", "stop_sequences": "stop"}
# Left out on the way to chat, or converted below.
_NOT_FOR_CHAT: Final = frozenset(
    {
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "messages",
        "metadata",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "system",
        "thinking",
        "thread",
        "tool_choice",
        "tools",
        "user_profile_id",
        "workspace_id",
    }
)
_UNSUPPORTED_BY_CHAT: Final = ("compaction", "context_management", "fallbacks", "thinking")
"""Parameters that change a response and have no equivalent in chat."""
_ANTHROPIC_ONLY: Final = ("container", "mcp_servers")
# Fields of chat that are converted below: they are no loss.
_CONVERTED: Final = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "parallel_tool_calls",
        "response_format",
        "stop",
        "tool_choice",
        "tools",
        "user",
    }
)
_HOSTED_TOOLS: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_")
"""Beginnings of the types of tools that run at Anthropic. They are left out and named, since an
agent can do without them: its own tools keep working."""
_HOSTED_CALLS: Final = ("server_tool_use", "mcp_tool_use")
_HOSTED_RESULTS: Final = "_tool_result"
"""End of the types of their results, e.g. ``web_search_tool_result``."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_CHOICES_BACK: Final = {value: key for key, value in _CHOICES.items()}


# -- to chat -------------------------------------------------------------------------------------


def request_from_messages(request: Json) -> Json:
    """Return a Messages request as a chat request.

    Raises:
        CodecError: The request uses a tool that runs at Anthropic, a conversation that is stored
        there, or content without equivalent.
    """
    for key in _ANTHROPIC_ONLY:
        if request.get(key):
            raise CodecError(f"{key!r} works only at Anthropic")
    if object_at(request, "thread").get("type") == "continue":  # it has the last turn alone
        raise CodecError("'thread' works only at Anthropic; send the whole conversation")
    chat = {
        key: value
        for key, value in request.items()
        if key not in _NOT_FOR_CHAT and key not in _TO_CHAT and value is not None
    }
    chat |= copy_keys(request, _TO_CHAT)
    messages: list[Json] = []
    system = simplify_content([_text(part) for part in as_list(request.get("system"))])
    if system:
        messages.append({"role": "system", "content": system})
    for message in as_list(request.get("messages")):
        messages += _message_to_chat(message)
    chat["messages"] = chat_turns(messages)
    tools = [_tool_to_chat(tool) for tool in _own_tools(request)]
    if tools:
        chat["tools"] = tools
    choice: Json | None = request.get("tool_choice")
    name = choice.get("name") if choice is not None else None
    hosted = {str(tool.get("name")) for tool in as_list(request.get("tools")) if _is_hosted(tool)}
    if choice is not None and (tools or not request.get("tools")) and name not in hosted:
        chat["tool_choice"] = (
            {"type": "function", "function": {"name": name}}
            if choice.get("type") == "tool"
            else _CHOICES.get(str(choice.get("type")), "auto")
        )
        if choice.get("disable_parallel_tool_use"):
            chat["parallel_tool_calls"] = False
    user = object_at(request, "metadata").get("user_id")
    if user is not None:
        chat["user"] = user
    schema = object_at(request, "output_config").get("format") or request.get("output_format")
    if schema:
        named = {"name": "output", "schema": schema.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    if request.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a Messages stream always contains usage
    return chat


def _text(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "text", "text": text_of(part, "the system prompt")}


def _message_to_chat(message: Json) -> list[Json]:
    content = message.get("content")
    if message.get("role") == "assistant":
        made = _assistant_to_chat(content)
        return [made] if len(made) > 2 or made["content"] is not None else []
    if isinstance(content, str):
        return [{"role": message.get("role"), "content": content}]
    messages: list[Json] = []
    parts: list[Json] = []

    def close() -> None:
        if parts:
            role = message.get("role") or "user"
            messages.append({"role": role, "content": simplify_content([*parts])})
            parts.clear()

    for block in as_list(content):
        if block.get("type") == "tool_result":
            close()
            messages.append(_tool_result_to_chat(block))
        else:
            parts.append(_part_to_chat(block))
    close()
    return messages


def _tool_result_to_chat(block: Json) -> Json:
    parts = [_part_to_chat(as_part(part)) for part in as_list(block.get("content"))]
    content = simplify_content(parts)
    return {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": "" if content is None else content,
    }


def _part_to_chat(block: Json) -> Json:
    kind, source = block.get("type"), cast("Json", block.get("source") or {})
    if kind == "text":
        return {"type": "text", "text": block.get("text", "")}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _source_url(source)}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": source.get("data", "")}
    if kind == "search_result":
        return {"type": "text", "text": _search_result(block)}
    if kind == "tool_reference":  # chat has all tools from the start
        return {"type": "text", "text": str(block.get("tool_name"))}
    if kind == "document" and source.get("type") == "content":
        return {"type": "text", "text": text_of(source.get("content"), "a document")}
    if kind == "document" and source.get("type") == "base64":
        file: Json = {"file_data": data_url(source["media_type"], source["data"])}
        if block.get("title"):
            file["filename"] = block["title"]
        return {"type": "file", "file": file}
    raise CodecError(f"chat has no equivalent of a content block of type {kind!r}")


def _search_result(block: Json) -> str:
    lines = (block.get("title"), block.get("source"), text_of(block.get("content"), "a result"))
    return "\n".join(str(line) for line in lines if line)


def _source_url(source: Json) -> str:
    if source.get("type") == "base64":
        return data_url(source.get("media_type", ""), source.get("data", ""))
    if source.get("type") == "url":
        return str(source.get("url"))
    raise CodecError(
        f"chat does not accept images by {source.get('type')!r}; send a URL or the bytes"
    )


def _assistant_to_chat(content: Any) -> Json:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    parts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    for block in as_list(content):
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
        elif kind == "tool_use":
            function = {"name": block["name"], "arguments": write_arguments(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(block.get("thinking", ""))
        elif not _is_anthropics(kind):
            raise CodecError(f"chat has no equivalent of an assistant's block of type {kind!r}")
    message: Json = {"role": "assistant", "content": simplify_content(parts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _is_anthropics(kind: Any) -> bool:
    """Return whether a block is encrypted, or of a tool that ran at Anthropic."""
    return (
        kind == "redacted_thinking" or kind in _HOSTED_CALLS or str(kind).endswith(_HOSTED_RESULTS)
    )


def _own_tools(request: Json) -> list[Json]:
    """Return the tools that the agent runs; Anthropic runs the others."""
    return [tool for tool in as_list(request.get("tools")) if not _is_hosted(tool)]


def _is_hosted(tool: Json) -> bool:
    return str(tool.get("type")).startswith(_HOSTED_TOOLS)


def _tool_to_chat(tool: Json) -> Json:
    if tool.get("type") not in (None, "custom"):
        raise CodecError(f"chat has no equivalent of Anthropic's tool {tool['type']!r}")
    names = {name: name for name in ("name", "description", "strict")}
    names["input_schema"] = "parameters"
    return {"type": "function", "function": copy_keys(tool, names)}


# -- from chat -----------------------------------------------------------------------------------


def request_to_messages(request: Json) -> Json:
    """Return a chat request as a Messages request.

    Raises:
        CodecError: The request asks for several choices, or has content without an equivalent.
    """
    if (request.get("n") or 1) != 1:
        raise CodecError("Messages returns one answer per call: n must be 1")
    made = copy_keys(request, _SAME)
    made["max_tokens"] = (
        request.get("max_completion_tokens") or request.get("max_tokens") or _DEFAULT_MAX_TOKENS
    )
    if request.get("stop"):
        made["stop_sequences"] = as_list(request["stop"])
    given = [*with_call_ids(as_list(request.get("messages")))]
    leading = leading_instructions(given)
    system: list[Json] = []
    for message in given[:leading]:
        system += [_cached(part, _text(part)) for part in as_list(message.get("content"))]
    messages: list[Json] = []
    for message in given[leading:]:
        _append(messages, _message_from_chat(message))
    if system:
        made["system"] = simplify_content(system)
    made["messages"] = messages
    if request.get("tools"):
        made["tools"] = [_tool_from_chat(tool) for tool in request["tools"]]
    choice = _choice_from_chat(request.get("tool_choice"))
    if request.get("parallel_tool_calls") is False and made.get("tools"):
        choice = choice or {"type": "auto"}
        if choice["type"] != "none":  # that choice has no other field
            choice = {**choice, "disable_parallel_tool_use": True}
    if choice is not None:
        made["tool_choice"] = choice
    if request.get("user") is not None:
        made["metadata"] = {"user_id": request["user"]}
    wanted: Json = request.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        schema = {"type": "json_schema", "schema": wanted["json_schema"].get("schema")}
        made["output_config"] = {"format": schema}
    return made


def _append(messages: list[Json], message: Json) -> None:
    """Add a message; tool results and the user's next message become one message.

    Anthropic refuses a message without content, such as one that had audio alone.
    """
    if not message["content"]:
        return
    last = messages[-1] if messages else None
    if last is None or last["role"] != "user" or message["role"] != "user" or not _answers(last):
        messages.append(message)
        return
    last["content"] = [*last["content"], *_blocks(message["content"])]


def _answers(message: Json) -> bool:
    blocks = _blocks(message["content"])
    return bool(blocks) and blocks[0].get("type") == "tool_result"


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _message_from_chat(message: Json) -> Json:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        answer: Json = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        found = content if isinstance(content, str) else [_block(part) for part in as_list(content)]
        return {"role": "user", "content": [{**answer, "content": found}]}
    if role in ("user", "system", "developer"):  # the system prompt has the leading instructions
        if isinstance(content, str):
            return {"role": "user", "content": content}
        return {"role": "user", "content": [_block(part) for part in as_list(content)]}
    if role != "assistant":
        raise CodecError(f"Messages has no role {role!r}")
    calls = [
        {
            "type": "tool_use",
            "id": call.get("id"),
            "name": function_of(call)[0],
            "input": parse_arguments(function_of(call)[1]),
        }
        for call in as_list(message.get("tool_calls"))
    ]
    signed, refusal = signed_blocks(message), message.get("refusal")
    if isinstance(content, str) and not (calls or signed or refusal):
        return {"role": "assistant", "content": content}
    blocks = [_block(part) for part in [*as_list(content), refusal or ""] if part != ""]
    return {"role": "assistant", "content": [*signed, *blocks, *calls]}


def _cached(source: Any, made: Json) -> Json:
    """Return a block with the ``cache_control`` of its source, as LiteLLM adds it to chat."""
    mark = cast("Json", source).get("cache_control") if isinstance(source, dict) else None
    return made if mark is None else {**made, "cache_control": mark}


def _block(part: Any) -> Json:
    return _cached(part, _plain_block(part))


def _plain_block(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": part.get(kind, "")}
    if kind == "image_url":
        image = part["image_url"]
        url = image if isinstance(image, str) else image["url"]
        data = split_data_url(url)
        source: Json = {"type": "url", "url": url}
        if data is not None:
            source = {"type": "base64", "media_type": data[0], "data": data[1]}
        return {"type": "image", "source": source}
    data = split_data_url(part["file"].get("file_data") or "") if kind == "file" else None
    if data is None:
        raise CodecError(f"Messages has no equivalent of a content part of type {kind!r}")
    source = {"type": "base64", "media_type": data[0], "data": data[1]}
    title = part["file"].get("filename")
    return {"type": "document", "source": source, **({"title": title} if title else {})}


def _tool_from_chat(tool: Json) -> Json:
    function = tool.get("function")
    if tool.get("type") != "function" or function is None:
        raise CodecError(f"Messages has no equivalent of a tool of type {tool.get('type')!r}")
    made = copy_keys(function, {"name": "name", "description": "description", "strict": "strict"})
    made["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
    return _cached(function, _cached(tool, made))


def _choice_from_chat(choice: Any) -> Json | None:
    if isinstance(choice, str):
        return {"type": _CHOICES_BACK.get(choice, "auto")}
    if choice is None:
        return None
    if choice.get("type") != "function":
        raise CodecError(f"Messages has no equivalent of the tool choice {choice!r:.80}")
    return {"type": "tool", "name": choice["function"]["name"]}


# -- what is lost ----------------------------------------------------------------------------------


def lost_to_chat(request: Json) -> Iterator[str]:
    """Yield the names of a Messages request's fields that chat does not have."""
    yield from (key for key in _UNSUPPORTED_BY_CHAT if request.get(key) is not None)
    if object_at(request, "output_config").get("effort") is not None:
        yield "output_config.effort"
    hosted = filter(_is_hosted, as_list(request.get("tools")))
    yield from (f"tools.{tool['type']}" for tool in hosted)
    messages = objects_in(request.get("messages"))
    if late_instructions(messages):
        yield "messages.role"  # a late instruction became a user's message
    if _has_cache_control(request):
        yield "cache_control"
    for message in messages:
        for block in objects_in(message.get("content")):
            kind = block.get("type")
            if kind == "tool_result" and block.get("is_error"):
                yield "tool_result.is_error"
            elif kind == "thinking" and block.get("signature"):
                yield "thinking.signature"
            elif _is_anthropics(kind):
                yield str(kind)


def _has_cache_control(request: Json) -> bool:
    blocks = [*objects_in(request.get("system")), *objects_in(request.get("tools"))]
    for message in objects_in(request.get("messages")):
        blocks += objects_in(message.get("content"))
    return any("cache_control" in block for block in (request, *blocks))


def lost_from_chat(request: Json) -> Iterator[str]:
    """Yield the names of a chat request's fields that Messages does not have."""
    yield from unsupported(request, {*_SAME, *_CONVERTED})
    wanted = object_at(request, "response_format").get("type")
    if wanted not in (None, "text", "json_schema"):
        yield "response_format"  # JSON without a schema
    messages = as_list(request.get("messages"))
    if late_instructions(messages):
        yield "messages.role"  # a late instruction became a user's message
    for message in messages:
        if not all(map(is_signed, thinking_blocks(message))):
            yield "reasoning_content"  # Anthropic accepts only reasoning that it signed
        if message.get("audio"):
            yield "messages.audio"
