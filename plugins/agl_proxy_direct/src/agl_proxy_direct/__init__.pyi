from .app import ProxyApp as ProxyApp
from .backends import (
    Backend as Backend,
    ModelEntry as ModelEntry,
    ModelParams as ModelParams,
    parse_model_list as parse_model_list,
    providers as providers,
    read_base_url as read_base_url,
    read_model_list as read_model_list,
    refuse_references as refuse_references,
    resolve_secret as resolve_secret,
)
from .config import DirectProxyConfig as DirectProxyConfig
from .errors import (
    CallError as CallError,
    error_body as error_body,
)
from .http_upstream import (
    NOT_FORWARDED as NOT_FORWARDED,
    HttpUpstream as HttpUpstream,
    response_headers as response_headers,
)
from .proxy import DirectProxy as DirectProxy
from .upstream import (
    MAX_RESPONSE_BYTES as MAX_RESPONSE_BYTES,
    Upstream as Upstream,
    UpstreamError as UpstreamError,
    UpstreamRequest as UpstreamRequest,
    UpstreamResponse as UpstreamResponse,
    too_large as too_large,
)
from .upstream_spec import UpstreamSpec as UpstreamSpec
