"""The store: the only thing between algorithm and runners.

:mod:`agl_core.store.base` is the contract. The stores themselves are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.store.base import LightningStore
from agl_core.store.encoded import EncodedSpan, decode_spans, encode_span
from agl_core.store.values import (
    UNSET,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)

if TYPE_CHECKING:
    from agl_core.store.memory import InMemoryLightningStore
    from agl_core.store.threaded import LightningStoreThreaded

__all__ = [
    "UNSET",
    "EncodedSpan",
    "FilterLogic",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "StoreEvent",
    "Unset",
    "decode_spans",
    "encode_span",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "InMemoryLightningStore": "agl_core.store.memory",
        "LightningStoreThreaded": "agl_core.store.threaded",
    },
)
