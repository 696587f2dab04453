"""Small things that the translations share."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from agl_codec.base import CodecError
from agl_core.genai import Json, dumps, loads

__all__ = [
    "as_list",
    "as_part",
    "copy_keys",
    "data_url",
    "first_choice",
    "inner",
    "is_signed",
    "parse_arguments",
    "signed_blocks",
    "simplest",
    "split_data_url",
    "text_of",
    "write_arguments",
]

_DATA_URL: Final = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
RAW_ARGUMENTS: Final = "__raw_arguments"
"""Holds a tool call's arguments that are no JSON object, where the protocol takes only those."""


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, nothing as an empty one, and anything else in one."""
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def copy_keys(source: Json, names: dict[str, str]) -> Json:
    """Return the values of some keys under their other names, without those that are null."""
    return {new: source[old] for old, new in names.items() if source.get(old) is not None}


def inner(value: Json, key: str) -> Json:
    """Return the object under a key; an empty one if there is none."""
    found: Any = value.get(key)
    return cast("Json", found) if isinstance(found, dict) else {}


def first_choice(response: Json) -> Json:
    """Return the first choice of a chat completion; an empty one if there is none."""
    choices: list[Json] = response.get("choices") or [{}]
    return choices[0]


def as_part(part: Any) -> Json:
    """Return a part of a chat message's content; a string is one of text."""
    return {"type": "text", "text": part} if isinstance(part, str) else part


def simplest(parts: list[Json]) -> str | list[Json] | None:
    """Return the content of a chat message: a lone text as a string, nothing as null."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and len(parts[0]) == 2:
        return str(parts[0]["text"])
    return parts


def text_of(content: Any, what: str) -> str:
    """Return content that must be text.

    Raises:
        CodecError: It is not.
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
    """Whether Anthropic wants a block back as it is: thoughts that it has signed or hidden.

    A chat message carries these under ``thinking_blocks``, where LiteLLM has them, too.
    """
    kind = block.get("type")
    return kind == "redacted_thinking" or (kind == "thinking" and bool(block.get("signature")))


def signed_blocks(message: Json) -> list[Json]:
    """Return the thoughts of a chat message that Anthropic has signed or hidden."""
    return [block for block in as_list(message.get("thinking_blocks")) if is_signed(block)]


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 data of a data URL, or None for another URL."""
    found = _DATA_URL.fullmatch(url)
    return (found[1], found[2]) if found else None


def parse_arguments(arguments: Any) -> Json:
    """Return a tool call's arguments as an object; what is none is kept under one key."""
    if isinstance(arguments, dict):
        return cast("Json", arguments)
    text = str(arguments or "")
    try:
        parsed: Any = loads(text.encode() or b"{}")
    except ValueError:
        parsed = None
    return cast("Json", parsed) if isinstance(parsed, dict) else {RAW_ARGUMENTS: text}


def write_arguments(value: Any) -> str:
    """Return an object as the arguments of a tool call; the inverse of :func:`parse_arguments`."""
    if isinstance(value, dict) and set(cast("Json", value)) == {RAW_ARGUMENTS}:
        return str(cast("Json", value)[RAW_ARGUMENTS])
    return dumps({} if value is None else value).decode()
