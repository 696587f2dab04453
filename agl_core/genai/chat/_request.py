"""Extra fields of chat requests, as vLLM and OpenAI name them."""

from __future__ import annotations

from typing import Any, cast

from agl_core.genai._errors import CodecError
from agl_core.genai._extra import ExtraFields
from agl_core.genai._wire import Json

__all__ = ["request_extra"]


def request_extra(body: Json, wanted: ExtraFields, *, logprobs: Any) -> ExtraFields:
    """Request extra fields, in place; return those that the agent did not request.

    Args:
        body: The request.
        wanted: The fields that the backend can return.
        logprobs: Value of ``logprobs`` that asks for the sampled token's alone.

    Raises:
        CodecError: ``stream_options`` is not an object.
    """
    ids = asked = usage = False
    if wanted.token_ids and not body.get("return_token_ids"):
        body["return_token_ids"] = ids = True
    given: Any = body.get("logprobs")
    if wanted.logprobs and (given is None or given is False):  # 0 asks, and equals False
        body["logprobs"] = logprobs
        asked = True
    if body.get("stream") and wanted.usage:
        options: Any = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise CodecError("stream_options must be an object")
        options = cast("Json", options)
        if not options.get("include_usage"):
            body["stream_options"] = {**options, "include_usage": True}
            usage = True
    return ExtraFields(ids, asked, usage)
