"""Options of the proxy's ASGI application, and which upstream it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl_proxy_direct.backends import Backend, parse_model_list
from agl_proxy_direct.http_upstream import HttpUpstream
from agl_proxy_direct.limits import RolloutLimits
from agl_proxy_direct.upstream import Upstream

__all__ = ["ProxyOptions", "UpstreamSpec"]


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """How a proxy reads its model list, and what sends its requests."""

    parse: Callable[[Sequence[Mapping[str, Any]]], tuple[Backend, ...]] = parse_model_list
    """Returns the backends of a model list; raises ConfigError."""
    connect: Callable[[], Upstream] = HttpUpstream
    """Makes the upstream. Called in the event loop that serves."""


@dataclass(frozen=True)
class ProxyOptions:
    """Options of a proxy. Durations are seconds. Picklable."""

    auth_token: str | None = None
    """Secret that callers' tokens are signed with; None accepts calls without a token."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers accepted besides localhost and IP addresses, for a proxy without a token."""
    num_retries: int = 2
    """Tries of a call after the first, on other backends and before its first byte."""
    queue_timeout: float = 600.0
    """Longest wait of a call for a free backend or for the end of a pause."""
    flush_timeout: float = 5.0
    """Longest wait of a response's end for its span to be stored."""
    stop_timeout: float = 30.0
    """Longest wait of a stop for spans to be stored."""
    max_spooled_spans: int = 20_000
    """Spans that may wait for the store before new calls are refused."""
    max_spooled_bytes: int = 512 * 2**20
    """Bytes of JSON that these spans may hold together."""
    max_body_bytes: int = 256 * 2**20
    """Largest request body."""
    limits: RolloutLimits = field(default_factory=RolloutLimits)
