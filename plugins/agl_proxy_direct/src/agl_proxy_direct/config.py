"""Configuration of the direct proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agl_core.plugins import ComponentConfig
from agl_core.store import LightningStore
from agl_serving import LOOPBACK, MIN_SECRET_LENGTH, is_loopback

__all__ = ["DirectProxyConfig"]


class DirectProxyConfig(ComponentConfig):
    """Options of :class:`~agl_proxy_direct.DirectProxy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"store"})

    port: int | None = Field(default=None, ge=0, le=65535, kw_only=False)
    """Port; None takes a free one."""
    model_list: Sequence[Mapping[str, Any]] | None = Field(default=None, kw_only=False)
    """Backends, in LiteLLM's form."""
    store: LightningStore | None = Field(default=None, exclude=True, kw_only=False)
    """Store of the spans; may be set later, before the start."""
    host: str | None = Field(default=None, kw_only=False)
    """Interface to listen on; None is loopback. Any other needs ``auth_token`` or ``insecure``."""
    access_host: str | None = None
    """Host in the URL for agents; None is the bound host, "auto" the outbound address."""
    launch_mode: Literal["thread", "asyncio"] = "thread"
    """``thread``: a thread with an event loop of its own; ``asyncio``: a task of the loop that
    starts the proxy."""
    auth_token: str | None = Field(default=None, min_length=MIN_SECRET_LENGTH)
    """Secret of the tokens that callers send as API key (:func:`agl_serving.mint_token`)."""
    insecure: bool = False
    """Accept calls from a network without a token."""
    allowed_hosts: Sequence[str] = ()
    """Host headers accepted besides localhost and IP addresses, for a proxy without a token."""
    attempt_routes: Sequence[str] = ()
    """Further calls that tokens of attempts and runners may make, e.g. ``POST /rerank``. By default
    they may call models, tokenize, and list the models."""
    num_retries: int = Field(default=2, ge=0)
    """Tries of a call after the first, on other backends and before its first byte."""
    queue_timeout: float = Field(default=600.0, gt=0)
    """Longest wait of a call for a free backend or for the end of a pause, in seconds."""
    flush_timeout: float = Field(default=5.0, gt=0)
    """Longest wait of a response's end for its span to be stored, in seconds."""
    stop_timeout: float = Field(default=30.0, gt=0)
    """Longest wait of a stop for spans to be stored, in seconds."""
    max_spooled_spans: int = Field(default=20_000, ge=1)
    """Spans that may wait for the store before new calls are refused."""
    max_calls_per_rollout: int | None = Field(default=None, ge=1)
    """Model calls that a rollout may make; None is no limit."""
    max_tokens_per_rollout: int | None = Field(default=None, ge=1)
    """Tokens that a rollout may use, prompts included. The call that exceeds it is the last one."""
    max_calls_per_minute: float | None = Field(default=None, gt=0)
    """Rate at which a rollout may call. Bursts of up to ten seconds' worth are allowed."""

    @field_validator("attempt_routes")
    @classmethod
    def _check_routes(cls, routes: Sequence[str]) -> Sequence[str]:
        for route in routes:
            if not re.fullmatch(r"[A-Z]+ (/[^/\s]+)+", route):
                raise ValueError(f"{route!r} is not a call below /v1, e.g. 'POST /rerank'")
        return routes

    @model_validator(mode="after")
    def _check_host(self) -> DirectProxyConfig:
        if not (is_loopback(self.host or LOOPBACK) or self.auth_token or self.insecure):
            raise ValueError(
                f"on {self.host} anyone on the network could use these models: set auth_token, or "
                "allow it with insecure=True"
            )
        return self
