"""The store: the only thing between algorithm and runners.

* :class:`LightningStore` - the contract, for all users of a store.
* :class:`InterceptedStore`, :class:`Interceptor`, :func:`intercept` - what watches a store: a list
  of interceptors that each call passes on its way to the store.

Stores are plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.store._base import LightningStore
from agl_core.store._call import SYNC_CALLS, Method, Next, StoreCall
from agl_core.store._encoded import (
    MAX_SPAN_ATTRIBUTES,
    MAX_SPAN_BYTES,
    EncodedSpan,
    SpanParts,
    StoredSpan,
    check_size,
    decode_spans,
    encode_span,
    finite_number,
    hold_span,
)
from agl_core.store._installed import installed_interceptors, with_installed
from agl_core.store._intercepted import InterceptedStore, innermost, intercept
from agl_core.store._interceptor import Interceptor, InterceptorLike, as_interceptor
from agl_core.store._request_key import current_request_key, id_from_key
from agl_core.store._values import (
    UNSET,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)

if TYPE_CHECKING:
    from agl_core.store._default import default_store

__all__ = [
    "MAX_SPAN_ATTRIBUTES",
    "MAX_SPAN_BYTES",
    "SYNC_CALLS",
    "UNSET",
    "EncodedSpan",
    "FilterLogic",
    "InterceptedStore",
    "Interceptor",
    "InterceptorLike",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "Method",
    "Next",
    "SpanParts",
    "StoreCall",
    "StoreEvent",
    "StoredSpan",
    "Unset",
    "as_interceptor",
    "check_size",
    "current_request_key",
    "decode_spans",
    "default_store",
    "encode_span",
    "finite_number",
    "hold_span",
    "id_from_key",
    "innermost",
    "installed_interceptors",
    "intercept",
    "with_installed",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "default_store": "agl_core.store._default",
    },
)
