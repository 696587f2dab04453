"""Options of the store client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from agl_core.plugins import ComponentConfig

__all__ = ["API_PREFIX", "ClientConfig"]

API_PREFIX: Final = "/v1/agl"
"""Path of the API below the address of a server."""


class ClientConfig(ComponentConfig):
    """Options of :class:`~agl_store_http.LightningStoreClient`."""

    server_address: str = Field(kw_only=False)
    """URL of the server, e.g. ``http://127.0.0.1:4747``; with the ``/v1/agl`` of its API or not."""
    retry_delays: Sequence[float] = (1.0, 2.0, 5.0)
    """Seconds to wait before each further try of a failed request."""
    health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5)
    """Seconds between the health probes that precede a further try. When all probes fail there is
    no further try. If they are given, they replace ``reconnect_timeout``."""
    reconnect_timeout: float = Field(default=300.0, ge=0)
    """Longest wait for a server that has answered before, in seconds from a call's first failure:
    what a supervisor needs to restart it. After more than 300 s the server may have
    forgotten a reply, and would execute the call twice. Without effect if ``health_retry_delays``
    are given."""
    request_timeout: float = Field(default=30.0, gt=0)
    """Seconds that one request may take, besides the time that it asks the server to wait."""
    connection_timeout: float = Field(default=5.0, gt=0)
    """Seconds that connecting may take."""
    auth_token: str | None = None
    """Access token; AGL_AUTH_TOKEN by default."""

    @field_validator("server_address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        try:
            parts = urlsplit(address)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port out of range, or an invalid IPv6 address
            valid = False
        if not valid:
            raise ValueError("must be the URL of a server, e.g. http://127.0.0.1:4747")
        return address.rstrip("/").removesuffix(API_PREFIX)
