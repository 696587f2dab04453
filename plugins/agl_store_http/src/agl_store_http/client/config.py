"""Options of the store client."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ClientConfig"]


class ClientConfig(BaseModel):
    """Options of :class:`~agl_store_http.LightningStoreClient`; durations are seconds."""

    model_config = ConfigDict(extra="forbid")

    server_address: str = Field(description="URL of the server, e.g. http://127.0.0.1:4747")
    retry_delays: tuple[float, ...] = Field(
        default=(1.0, 2.0, 5.0), description="Pauses before a request is sent again"
    )
    health_retry_delays: tuple[float, ...] = Field(
        default=(0.1, 0.2, 0.5), description="Pauses between looks for a server that was lost"
    )
    request_timeout: float = Field(default=30.0, gt=0, description="Longest wait for an answer")
    connection_timeout: float = Field(default=5.0, gt=0, description="Longest wait to connect")
    auth_token: str | None = Field(
        default=None, description="Access token; AGL_AUTH_TOKEN by default"
    )
