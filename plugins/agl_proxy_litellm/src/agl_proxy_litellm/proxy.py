"""The component ``proxy.litellm``: the direct proxy with LiteLLM as its upstream.

::

    proxy = LiteLLMProxy(store=store, model_list=[
        {"model_name": "nova", "litellm_params": {"model": "bedrock/amazon.nova-pro-v1:0"}}])
"""

from __future__ import annotations

from agl_proxy_direct import DirectProxy, UpstreamSpec
from agl_proxy_litellm.backends import check_received, parse_model_list
from agl_proxy_litellm.upstream import LiteLLMUpstream

__all__ = ["LiteLLMProxy"]


class LiteLLMProxy(DirectProxy):
    """Relays calls to LiteLLM's providers, and records each in one span.

    Routes, streams, capture, control, tokens, limits and options are those of
    :class:`~agl_proxy_direct.DirectProxy`. Each entry of the model list is a deployment of
    LiteLLM's router. The proxy chooses the deployment of a call, since it knows rollouts, health
    and calls in flight. LiteLLM's own proxy server is not started.
    """

    upstream_spec: UpstreamSpec = UpstreamSpec(parse_model_list, LiteLLMUpstream, check_received)
