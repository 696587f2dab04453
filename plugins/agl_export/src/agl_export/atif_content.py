"""Content of messages in ATIF: text, or parts of text and images."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["content_of", "to_content"]

_IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""Media types of images that ATIF 1.7 knows."""


def to_content(message: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """Return the content of a message of OpenAI's chat format as ATIF has it.

    Parts that ATIF does not have become text that holds their JSON.
    """
    content: Any = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content)
    return [_to_part(part) for part in cast("list[Any]", content)]


def content_of(content: Any) -> Any:
    """Return ATIF's content as that of a message of OpenAI's chat format."""
    if not isinstance(content, list):
        return content
    found: list[dict[str, Any]] = []
    for part in cast("list[dict[str, Any]]", content):
        if part.get("type") == "image":
            url = part["source"]["path"]
            found.append({"type": "image_url", "image_url": {"url": url}})
        elif part.get("type") == "text":
            found.append({"type": "text", "text": part["text"]})
        else:
            found.append(part)
    return found


def _to_part(part: Any) -> dict[str, Any]:
    if isinstance(part, Mapping):
        given = cast("Mapping[str, Any]", part)
        if isinstance(given.get("text"), str):
            return {"type": "text", "text": given["text"]}
        image: Any = given.get("image_url")
        url: Any = cast("Mapping[str, Any]", image).get("url") if isinstance(image, dict) else image
        if isinstance(url, str) and (kind := _media_type(url)) in _IMAGES:
            return {"type": "image", "source": {"media_type": kind, "path": url}}
    return {"type": "text", "text": json.dumps(part)}


def _media_type(url: str) -> str:
    if url.startswith("data:"):
        return url[5:].partition(",")[0].partition(";")[0]
    return mimetypes.guess_type(url.partition("?")[0])[0] or ""
