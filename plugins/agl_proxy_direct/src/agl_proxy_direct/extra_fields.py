"""Completes an agent's request for a backend."""

from __future__ import annotations

from agl_core.genai import NO_EXTRA_FIELDS, ExtraFields, Json, Protocol, get_protocol
from agl_proxy_direct.backends import Backend

__all__ = ["complete_request"]


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
    if not capture:
        return NO_EXTRA_FIELDS
    wanted = ExtraFields(backend.token_ids, backend.logprobs, backend.stream_usage)
    return get_protocol(protocol).request_extra(body, wanted)
