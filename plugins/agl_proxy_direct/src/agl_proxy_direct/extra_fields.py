"""Completes an agent's request for a backend."""

from __future__ import annotations

from agl_core import semconv
from agl_core.genai import NO_EXTRA_FIELDS, ExtraFields, Json, Protocol, dumps, get_protocol
from agl_proxy_direct.backends import Backend

__all__ = ["complete_request"]


def complete_request(
    body: Json, protocol: Protocol, backend: Backend, attributes: Json | None
) -> ExtraFields:
    """Set the backend's model name and defaults in a request, and request extra fields, in place.

    Args:
        body: The request, in the backend's protocol.
        protocol: The backend's protocol.
        backend: The backend that gets the request.
        attributes: Of the call's span, which get the defaults; None if the call is not recorded.

    Returns:
        The fields to remove from the response.

    Raises:
        CodecError: ``stream_options`` is not an object.
    """
    body["model"] = backend.model
    added = {key: value for key, value in backend.defaults if key not in body}
    body.update(added)
    if attributes is None:
        return NO_EXTRA_FIELDS
    added |= {key: value for key, value in backend.upstream_defaults if key not in body}
    if added:
        attributes[semconv.REQUEST_DEFAULTS] = dumps(added).decode()
    wanted = ExtraFields(backend.token_ids, backend.logprobs, backend.stream_usage)
    return get_protocol(protocol).request_extra(body, wanted)
