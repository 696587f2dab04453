"""Configuration of the direct proxy."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DirectProxyConfig"]


class DirectProxyConfig(BaseModel):
    """Options of :class:`~agl_proxy_direct.DirectProxy`. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    injects: ClassVar[frozenset[str]] = frozenset({"store"})

    port: int | None = Field(default=None, ge=0, le=65535, description="None takes a free one")
    model_list: list[dict[str, Any]] | None = Field(
        default=None, description="Backends, in LiteLLM's shape"
    )
    host: str | None = Field(default=None, description="Interface; None is loopback")
    access_host: str | None = Field(
        default=None,
        description='Host that agents reach the proxy at; "auto": the outbound one',
    )
    launch_mode: Literal["thread", "asyncio"] = Field(
        default="thread", description="A thread of its own, or a task of the caller's loop"
    )
    auth_token: str | None = Field(
        default=None, description="Secret whose tokens callers must show as API key"
    )
    insecure: bool = Field(default=False, description="Let a network in without a token")
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Further names of this server, without auth"
    )
    num_retries: int = Field(
        default=2, ge=0, description="Further tries of a call, on other backends"
    )
    queue_timeout: float = Field(
        default=600.0, gt=0, description="Longest wait for a free backend or the end of a pause"
    )
    flush_timeout: float = Field(
        default=5.0, gt=0, description="Longest wait of an answer's end for its span"
    )
    stop_timeout: float = Field(
        default=30.0, gt=0, description="Longest wait of a stop for spans to be stored"
    )
    max_spooled_spans: int = Field(
        default=20_000, ge=1, description="Spans that may wait before new calls are refused"
    )
    max_calls_per_rollout: int | None = Field(default=None, ge=1)
    max_tokens_per_rollout: int | None = Field(default=None, ge=1)
    max_calls_per_minute: float | None = Field(
        default=None, gt=0, description="Of one rollout; bursts of ten seconds' worth pass"
    )
