"""The list of models, for OpenAI's and Anthropic's clients (``GET /v1/models``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agl_core.genai import dumps
from agl_proxy_direct.errors import CallError

__all__ = ["describe_models"]


def describe_models(
    endpoint: str, served: Sequence[str], allowed: Collection[str] | None = None
) -> bytes:
    """Return the JSON of ``/models`` or of ``/models/NAME``.

    Args:
        endpoint: The path below ``/v1``.
        served: Names of the models that the proxy serves.
        allowed: Names that the caller may use; None for all.

    Raises:
        CallError: 404, there is no model of this name.
    """
    data = [_describe(name) for name in served if allowed is None or name in allowed]
    wanted = endpoint.removeprefix("/models").strip("/")
    if not wanted:
        return dumps({"object": "list", "data": data, "has_more": False})
    found = next((item for item in data if item["id"] == wanted), None)
    if found is None:
        raise CallError(404, f"there is no model {wanted!r} here", "model_not_found")
    return dumps(found)


def _describe(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "agl",
        # Anthropic's clients read the keys below.
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
