"""Fields that the proxy requests from a backend in addition to what the agent requested.

Token ids and log-probabilities cannot be obtained after a call, so the proxy requests them with
every call that it records. An agent that did not request them gets the same response as without the
proxy: :meth:`ExtraFields.strip` removes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from agl_codec import CodecError
from agl_core.genai import Json, Protocol
from agl_proxy_direct.backends import Backend

__all__ = ["NO_EXTRA_FIELDS", "ExtraFields", "complete_request"]


@dataclass(frozen=True, slots=True)
class ExtraFields:
    """The fields of a response that the agent did not request."""

    token_ids: bool = False
    logprobs: bool = False
    usage: bool = False
    """The last chunk of a stream, which holds the usage."""

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs or self.usage

    def strip(self, body: Json) -> bool:
        """Remove these fields from a response or from a chunk of a stream, in place.

        Returns:
            Whether the chunk is empty now, so that it should not be sent.
        """
        choices: list[Json] = body.get("choices") or []
        if self.usage and "usage" in body:
            if not choices and body["usage"] is not None:
                return True
            del body["usage"]
        if self.token_ids:
            body.pop("prompt_token_ids", None)
            for choice in choices:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
        if self.logprobs:
            for choice in choices:
                if choice.get("logprobs") is not None:
                    choice["logprobs"] = None
        return False


NO_EXTRA_FIELDS: Final = ExtraFields()


def complete_request(
    body: Json, protocol: Protocol, backend: Backend, *, capture: bool
) -> ExtraFields:
    """Set the backend's model name and defaults in a request, and request extra fields, in place.

    Args:
        body: The request, in the backend's protocol.
        protocol: The backend's protocol.
        backend: The backend that gets the request.
        capture: Whether the call is recorded.

    Returns:
        The fields to remove from the response.

    Raises:
        CodecError: ``stream_options`` is not an object.
    """
    body["model"] = backend.model
    for key, value in backend.defaults:
        body.setdefault(key, value)
    if not capture or protocol not in ("chat", "completions"):
        return NO_EXTRA_FIELDS
    ids = logprobs = usage = False
    if backend.token_ids and not body.get("return_token_ids"):
        body["return_token_ids"] = ids = True
    if backend.logprobs and body.get("logprobs") in (None, False):
        body["logprobs"] = True if protocol == "chat" else 0  # 0: of the sampled token alone
        logprobs = True
    if body.get("stream") and backend.stream_usage:
        options: Any = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise CodecError("stream_options must be an object")
        options = cast("Json", options)
        if not options.get("include_usage"):
            body["stream_options"] = {**options, "include_usage": True}
            usage = True
    return ExtraFields(ids, logprobs, usage)
