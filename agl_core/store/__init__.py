"""The store: the only thing between algorithm and runners.

:mod:`agl_core.store.base` is the contract. The stores themselves are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from agl_core.store.base import (
    UNSET,
    FilterLogic,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)
from agl_core.store.encoded import EncodedSpan, decode_spans, encode_span

if TYPE_CHECKING:
    from agl_core.server import LightningStoreServer
    from agl_core.store.client import LightningStoreClient
    from agl_core.store.memory import InMemoryLightningStore
    from agl_core.store.threaded import LightningStoreThreaded

__all__ = [
    "UNSET",
    "EncodedSpan",
    "FilterLogic",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "StoreEvent",
    "Unset",
    "decode_spans",
    "encode_span",
]

_LAZY: Final = {
    "InMemoryLightningStore": "agl_core.store.memory",
    "LightningStoreClient": "agl_core.store.client",
    "LightningStoreServer": "agl_core.server",
    "LightningStoreThreaded": "agl_core.store.threaded",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
