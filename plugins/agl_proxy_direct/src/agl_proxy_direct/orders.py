"""The orders of a proxy's object to its application, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agl_core.store import LightningStoreCapabilities
from agl_proxy_direct.app import ProxyApp
from agl_proxy_direct.backends import Backend
from agl_proxy_direct.config import DirectProxyConfig
from agl_proxy_direct.upstream_spec import UpstreamSpec

__all__ = ["AWAITED_ORDERS", "ORDERS", "WorkerSettings"]

ORDERS: Final[Mapping[str, Callable[..., None]]] = {
    "backends": ProxyApp.update,
    "version": lambda app, version, model: app.balancer.set_version(version, model),
    "pause": lambda app: app.balancer.pause(),
    "resume": lambda app: app.balancer.resume(),
}
"""Orders that take effect at once. Each may be repeated."""

AWAITED_ORDERS: Final[Mapping[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "drain": lambda app, deadline, abort: app.drain(deadline, abort=abort),
    "flush": lambda app, rollout_id, attempt_id: app.spool.flush(rollout_id, attempt_id),
}
"""Orders that wait. Each may be repeated."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings with which the application starts in another process."""

    config: DirectProxyConfig
    upstream_spec: UpstreamSpec
    backends: tuple[Backend, ...]
    versions: dict[str | None, str]
    paused: bool
    capabilities: LightningStoreCapabilities
    """Those of the store."""
    log_level: int
