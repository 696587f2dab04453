"""The interceptors of installed plugins (kind ``interceptor``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agl_core.store._base import LightningStore
from agl_core.store._intercepted import intercept

if TYPE_CHECKING:
    from agl_core.plugins import Registry
    from agl_core.store._interceptor import Interceptor

_lock = threading.Lock()
_made: tuple[Registry, tuple[Interceptor, ...]] | None = None


def installed_interceptors() -> tuple[Interceptor, ...]:
    """Return the interceptors of the installed plugins, in the order of their names.

    Each is made once per process. A plugin that fails is logged and left out. Thread-safe.
    """
    global _made
    from agl_core.plugins import get_registry

    registry = get_registry()
    with _lock:
        if _made is None or _made[0] is not registry:
            _made = registry, tuple(made for _, made in registry.resolved("interceptor"))
        return _made[1]


def with_installed(store: LightningStore) -> LightningStore:
    """Return the store with the installed interceptors in front; called twice, it adds none."""
    return intercept(store, *installed_interceptors())
