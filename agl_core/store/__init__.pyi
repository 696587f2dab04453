from ._base import LightningStore as LightningStore
from ._call import (
    SYNC_CALLS as SYNC_CALLS,
    Method as Method,
    Next as Next,
    StoreCall as StoreCall,
)
from ._default import default_store as default_store
from ._encoded import (
    MAX_SPAN_ATTRIBUTES as MAX_SPAN_ATTRIBUTES,
    MAX_SPAN_BYTES as MAX_SPAN_BYTES,
    EncodedSpan as EncodedSpan,
    SpanParts as SpanParts,
    StoredSpan as StoredSpan,
    check_size as check_size,
    decode_spans as decode_spans,
    encode_span as encode_span,
    finite_number as finite_number,
    hold_span as hold_span,
)
from ._installed import (
    installed_interceptors as installed_interceptors,
    with_installed as with_installed,
)
from ._intercepted import (
    InterceptedStore as InterceptedStore,
    innermost as innermost,
    intercept as intercept,
)
from ._interceptor import (
    Interceptor as Interceptor,
    InterceptorLike as InterceptorLike,
    as_interceptor as as_interceptor,
)
from ._listing import (
    each_item as each_item,
    next_page as next_page,
)
from ._request_key import (
    current_request_key as current_request_key,
    id_from_key as id_from_key,
    without_key as without_key,
)
from ._values import (
    UNSET as UNSET,
    FilterLogic as FilterLogic,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
    StoreEvent as StoreEvent,
    Unset as Unset,
)
