"""Converts chat messages from a dialect's shape to OpenAI's chat format, and validates them.

The format is that of https://platform.openai.com/docs/api-reference/chat/create. The types are
repeated here, because the core does not depend on the OpenAI package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, NotRequired, cast

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from agl_adapters.literals import as_list, as_text, parse_literal
from agl_adapters.model_call import at, numbered
from agl_core.adapter import AdapterReport, Dialect, MessageShape, Reason
from agl_core.errors import InvalidArgumentError

# -- the format ----------------------------------------------------------------------------------

_Part = dict[str, Any]
_Content = str | list[_Part]


class _Function(TypedDict):
    name: str
    arguments: str


class _ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: _Function


class _Instruction(TypedDict):
    role: Literal["system", "developer"]
    content: _Content
    name: NotRequired[str]


class _User(TypedDict):
    role: Literal["user"]
    content: _Content
    name: NotRequired[str]


class _Assistant(TypedDict):
    role: Literal["assistant"]
    content: NotRequired[_Content | None]
    name: NotRequired[str]
    tool_calls: NotRequired[Annotated[list[_ToolCall], Field(min_length=1)]]


class _Tool(TypedDict):
    role: Literal["tool"]
    content: _Content
    tool_call_id: str


class _FunctionResult(TypedDict):
    role: Literal["function"]
    content: str | None
    name: str


def _role(value: Any) -> Any:
    role = cast("Mapping[str, Any]", value).get("role") if isinstance(value, Mapping) else None
    return "system" if role == "developer" else role  # both are instructions, with one shape


_Message = Annotated[
    Annotated[_Instruction, Tag("system")]
    | Annotated[_User, Tag("user")]
    | Annotated[_Assistant, Tag("assistant")]
    | Annotated[_Tool, Tag("tool")]
    | Annotated[_FunctionResult, Tag("function")],
    Discriminator(_role),
]


@cache
def _checker() -> TypeAdapter[Any]:
    return TypeAdapter(_Message)


def check_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Validate a message against OpenAI's chat format; return it without unknown keys.

    Args:
        message: The message.
        where: Name of the message in an error: its span and position.

    Raises:
        InvalidArgumentError: The message does not follow OpenAI's chat format.
    """
    try:
        return _checker().validate_python(message)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(step) for step in first["loc"])
        raise InvalidArgumentError(
            f"{where} is not a chat message: {path + ': ' if path else ''}{first['msg']}"
        ) from error


_WITHOUT_CONTENT: Final = frozenset({"reasoning", "thinking"})
"""Types of parts that no API accepts as content of a message."""
_AS_IN_CHAT: Final = frozenset({"input_audio", "file", "video_url"})
"""Types of parts that are recorded in chat's own form; vLLM adds videos to it."""
_IN_CONTENT: Final = _AS_IN_CHAT | {"text", "refusal", "image_url"}
"""Types of parts that chat has."""

# -- from a dialect ------------------------------------------------------------------------------


def to_messages(
    raw: Iterable[Any], shape: MessageShape, report: AdapterReport | None = None
) -> list[dict[str, Any]]:
    """Convert messages of a dialect to OpenAI's shape; keys without a value are left out.

    One message of the GenAI conventions may hold results of several tools between other parts.
    Each result becomes a message; the order of the parts is kept.

    Args:
        raw: The messages.
        shape: Their shape.
        report: Where to count parts that chat does not have.
    """
    messages: list[dict[str, Any]] = []
    for item in raw:
        body = at(item, (shape.inside,)) if shape.inside else parse_literal(item)
        if not isinstance(body, Mapping):
            messages.append({"content": body})  # check_message rejects it and names its place
            continue
        found = cast("Mapping[str, Any]", body)
        message = {
            key: value
            for key, value in (
                ("role", _get(found, shape.role)),
                ("content", _of_chat(numbered(_get(found, shape.content)), report)),
                ("name", _get(found, shape.name)),
                ("tool_call_id", _get(found, shape.tool_call_id)),
            )
            if value is not None
        }
        calls = [_tool_call(call, shape) for call in as_list(_get(found, shape.tool_calls))]
        parts: Sequence[Any] = as_list(_get(found, shape.parts)) if shape.parts else ()
        messages += _with_parts(message, calls, parts, shape, report)
    return messages


def _of_chat(content: Any, report: AdapterReport | None) -> Any:
    """Return content without the parts that chat does not have; None if no part is left."""
    if not isinstance(content, list):
        return content
    kept: list[Any] = []
    for part in cast("list[Any]", content):
        kind = _get(part, "type")
        if kind is None or kind in _IN_CONTENT or isinstance(_get(part, "text"), str):
            kept.append(part)
        elif report is not None and kind not in _WITHOUT_CONTENT:
            report.leave_out("part", f"{Reason.NO_EQUIVALENT} {kind!r}")
    return kept or None


def _with_parts(
    message: dict[str, Any],
    calls: list[dict[str, Any]],
    parts: Sequence[Any],
    shape: MessageShape,
    report: AdapterReport | None,
) -> list[dict[str, Any]]:
    """Return a message with typed parts: the content, its tool calls, and results of tools."""
    messages: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []

    def close() -> None:
        made = dict(message)
        if len(content) == 1 and content[0]["type"] == "text":
            made["content"] = content[0]["text"]
        elif content:
            made["content"] = [*content]
        if calls:
            made["tool_calls"] = [*calls]
        messages.append(made)
        content.clear()
        calls.clear()

    for item in parts:
        part = at(item, (shape.part_inside,)) if shape.part_inside else item
        kind = _get(part, "type")
        image = next((url for path in shape.part_images if (url := _get(part, path))), None)
        if kind == "blob":
            image = f"data:{_get(part, 'mime_type')};base64,{_get(part, 'content')}"
        if kind == "tool_call":
            calls.append(_tool_call(part, shape))
        elif kind == "tool_call_response":
            if content or calls:
                close()
            result = next((found for p in shape.part_result if (found := _get(part, p))), "")
            messages.append(
                {"role": "tool", "content": as_text(result), "tool_call_id": _get(part, "id")}
            )
        elif image is not None:
            content.append({"type": "image_url", "image_url": {"url": image}})
        elif kind in ("text", "refusal"):
            content.append({"type": "text", "text": _get(part, shape.part_text)})
        elif kind in _AS_IN_CHAT and isinstance(own := _get(part, kind), Mapping):
            content.append({"type": kind, kind: own})
        elif report is not None and kind not in _WITHOUT_CONTENT:
            report.leave_out("part", f"{Reason.NO_EQUIVALENT} {kind!r}")
    if content or calls or not messages:
        close()
    return messages


def _tool_call(raw: Any, shape: MessageShape) -> dict[str, Any]:
    call = at(raw, (shape.call_inside,)) if shape.call_inside else raw
    return {
        "id": _get(call, shape.call_id),
        "type": "function",
        "function": {
            "name": _get(call, shape.call_name),
            "arguments": as_text(_get(call, shape.call_arguments)),
        },
    }


_TOOL_KEYS: Final = {
    "name": "name",
    "description": "description",
    "parameters": "parameters",
    "input_schema": "parameters",  # Anthropic's name for it
    "strict": "strict",
}


def to_tools(raw: Any, row: Dialect | None) -> list[dict[str, Any]] | None:
    """Convert a dialect's tool definitions to OpenAI's shape; None if there are none.

    JSON text in ``parameters`` is decoded.

    Raises:
        InvalidArgumentError: A definition is not a mapping.
    """
    tools: list[dict[str, Any]] = []
    for item in as_list(raw):
        inner = _get(item, row.tool_inside) if row and row.tool_inside else None
        tool = parse_literal(item if inner is None else inner)
        if not isinstance(tool, Mapping):
            raise InvalidArgumentError(f"a tool definition must be a mapping, not {tool!r:.80}")
        found = cast("Mapping[str, Any]", tool)
        function: Any = parse_literal(found.get("function", found))
        if not isinstance(function, Mapping) or "name" not in function:
            tools.append(dict(found))  # a tool that the provider runs, such as a web search
            continue
        definition = {
            _TOOL_KEYS[key]: parse_literal(value) if _TOOL_KEYS[key] == "parameters" else value
            for key, value in cast("Mapping[str, Any]", function).items()
            if key in _TOOL_KEYS and value is not None
        }
        tools.append({"type": "function", "function": definition})
    return tools or None


def image_urls(raw: Any, shape: MessageShape) -> list[str]:
    """Return the URLs of the images in messages of a dialect, in order."""
    messages = as_list(raw)
    if shape.parts:
        messages = to_messages(messages, shape)
    urls: list[str] = []
    for message in messages:
        content = numbered(_get(message, "content"))
        if isinstance(content, str) and not content.startswith("["):
            continue
        for part in as_list(content):
            url = _get(part, "image_url/url")
            if isinstance(url, str):
                urls.append(url)
    return urls


def _get(value: Any, path: str) -> Any:
    if "/" in path:
        return at(value, path.split("/"))
    return cast("Mapping[str, Any]", value).get(path) if isinstance(value, Mapping) else None
