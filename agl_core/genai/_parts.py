"""Helpers for JSON values, message parts and tool arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final, cast

from agl_core.genai._errors import CodecError
from agl_core.genai._wire import Json, dumps, loads

__all__ = [
    "answer_text",
    "as_list",
    "as_part",
    "calls_in",
    "copy_keys",
    "count_at",
    "data_url",
    "delta_of",
    "finish_reason_in",
    "first_choice",
    "function_of",
    "is_signed",
    "object_at",
    "objects_in",
    "parse_arguments",
    "signed_blocks",
    "simplify_content",
    "split_content",
    "split_data_url",
    "text_of",
    "thinking_blocks",
    "unsupported",
    "write_arguments",
]

_DATA_URL: Final = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
_WITHOUT_EFFECT: Final = frozenset({"metadata", "n", "service_tier", "store", "stream_options"})
"""Fields that do not change a response; leaving them out is not reported."""
RAW_ARGUMENTS: Final = "__raw_arguments"
"""Key that holds arguments that are not a JSON object, in a protocol that requires one."""


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, None as an empty list, and any other value in a list."""
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def copy_keys(source: Json, names: dict[str, str]) -> Json:
    """Return the values of some keys under new names, without nulls."""
    return {new: source[old] for old, new in names.items() if source.get(old) is not None}


def object_at(value: Json, key: str) -> Json:
    """Return the object under a key; empty if there is none."""
    found: Any = value.get(key)
    return cast("Json", found) if isinstance(found, dict) else {}


def count_at(usage: Json, key: str) -> int:
    """Return a number of tokens; 0 where a server does not give one."""
    found = usage.get(key)
    return int(found) if isinstance(found, int | float) else 0


def first_choice(response: Json) -> Json:
    """Return the first choice of a chat completion; empty if there is none."""
    choices = objects_in(response.get("choices"))
    return choices[0] if choices else {}


def delta_of(choice: Json) -> Json:
    """Return what a choice of a chat chunk adds. Some servers send it as ``message``."""
    delta: Any = choice.get("delta")
    return cast("Json", delta) if isinstance(delta, dict) else object_at(choice, "message")


def finish_reason_in(choice: Json) -> str | None:
    """Return the finish reason of a choice; None before its end.

    Some gateways send ``""`` or ``"null"`` with each chunk before the last.
    """
    reason = choice.get("finish_reason")
    return reason if reason and reason != "null" else None


def calls_in(message: Json) -> list[Json]:
    """Return the tool calls of a chat message or of a chunk's ``delta``.

    ``function_call`` is the form before tools, which has one call without an id.
    """
    if message.get("tool_calls"):
        return objects_in(message["tool_calls"])
    if isinstance(message.get("function_call"), dict):
        return [{"type": "function", "function": message["function_call"]}]
    return []


def as_part(part: Any) -> Json:
    """Return a part of a chat message's content; a string becomes a text part."""
    return {"type": "text", "text": part} if isinstance(part, str) else part


def simplify_content(parts: list[Json]) -> str | list[Json] | None:
    """Return parts as the content of a chat message: one text as a string, no part as null."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and len(parts[0]) == 2:
        return str(parts[0]["text"])
    return parts


def text_of(content: Any, what: str) -> str:
    """Return the text of content that must be text.

    Raises:
        CodecError: The content is not text.
    """
    pieces: list[str] = []
    for part in as_list(content):
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(cast("Json", part).get("text"), str):
            pieces.append(cast("Json", part)["text"])
        else:
            raise CodecError(f"{what} can only be text here, not {part!r:.80}")
    return "".join(pieces)


def is_signed(block: Json) -> bool:
    """Return whether a block is reasoning that Anthropic signed or encrypted.

    Anthropic requires such blocks back unchanged. A chat message has them under
    ``thinking_blocks``, as in LiteLLM.
    """
    kind = block.get("type")
    return kind == "redacted_thinking" or (kind == "thinking" and bool(block.get("signature")))


def signed_blocks(message: Json) -> list[Json]:
    """Return the reasoning of a chat message that Anthropic signed or encrypted."""
    return [block for block in as_list(message.get("thinking_blocks")) if is_signed(block)]


def thinking_blocks(message: Json) -> list[Json]:
    """Return the reasoning of a chat message as blocks of Messages, in order.

    The text of signed blocks is in the message's reasoning, too. The rest of it is unsigned.
    """
    _, thoughts = answer_text(message)
    blocks: list[Json] = []
    for block in signed_blocks(message):
        own = block.get("thinking")
        if own and own in thoughts:
            before, _, thoughts = thoughts.partition(own)
            blocks += _unsigned(before) if before.strip() else ()  # servers may put spaces between
        blocks.append(block)
    if thoughts.strip() or (thoughts and not blocks):
        blocks += _unsigned(thoughts)
    return blocks


def _unsigned(thoughts: str) -> list[Json]:
    return [{"type": "thinking", "thinking": thoughts, "signature": ""}]


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 data of a data URL, or None for another URL."""
    found = _DATA_URL.fullmatch(url)
    return (found[1], found[2]) if found else None


def parse_arguments(arguments: Any) -> Json:
    """Return a tool call's arguments as an object; other text is kept under one key."""
    if isinstance(arguments, dict):
        return cast("Json", arguments)
    text = str(arguments or "")
    try:
        parsed: Any = loads(text.encode() or b"{}")
    except ValueError:
        parsed = None
    return cast("Json", parsed) if isinstance(parsed, dict) else {RAW_ARGUMENTS: text}


def write_arguments(value: Any) -> str:
    """Return the arguments of a tool call as text; the inverse of :func:`parse_arguments`.

    Text stays as it is: a model that stops inside its arguments leaves invalid JSON, and some
    servers send an object where chat has text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(cast("Json", value)) == {RAW_ARGUMENTS}:
        return str(cast("Json", value)[RAW_ARGUMENTS])
    return dumps({} if value is None else value).decode()


def split_content(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning in the content of an answer.

    Content is text, or a list of parts (Mistral's reasoning models: ``thinking`` and ``text``).
    """
    if isinstance(content, str):
        return content, ""
    text: list[str] = []
    thoughts: list[str] = []
    for part in as_list(content):
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            block = cast("Json", part)
            if block.get("type") == "thinking":
                thoughts.append("".join(split_content(block.get("thinking"))))
            else:
                found = block.get("text", block.get("refusal"))
                text.append(found if isinstance(found, str) else "")
    return "".join(text), "".join(thoughts)


def answer_text(message: Json) -> tuple[str, str]:
    """Return the text and the reasoning of a chat message or of a chunk's ``delta``."""
    text, inside = split_content(message.get("content"))
    thoughts, _ = split_content(message.get("reasoning_content") or message.get("reasoning"))
    return text, thoughts or inside


def function_of(call: Json) -> tuple[str | None, str]:
    """Return name and arguments of a tool call, or of a piece of one; None for no name."""
    function = object_at(call, "function") or object_at(call, "custom")
    arguments = function.get("arguments", function.get("input"))
    name = function.get("name")
    return name if isinstance(name, str) and name else None, (
        "" if arguments is None else write_arguments(arguments)
    )


def objects_in(content: Any) -> list[Json]:
    """Return the parts of content that are objects, not text."""
    return [cast("Json", part) for part in as_list(content) if isinstance(part, dict)]


def unsupported(request: Json, supported: Collection[str]) -> Iterator[str]:
    """Yield the names of a request's fields that change a response and are not supported."""
    for key, value in request.items():
        if value not in (None, False) and key not in _WITHOUT_EFFECT and key not in supported:
            yield key
