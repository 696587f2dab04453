"""The proxy's app with LiteLLM behind it.

::

    proxy = LiteLLMProxy(store=store, model_list=[
        {"model_name": "nova", "litellm_params": {"model": "bedrock/amazon.nova-pro-v1:0"}}])
"""

from __future__ import annotations

from typing import ClassVar

from agl_proxy_direct import DirectProxy, UpstreamSpec
from agl_proxy_litellm.backends import parse_model_list
from agl_proxy_litellm.upstream import LiteLLMUpstream

__all__ = ["LiteLLMProxy"]


class LiteLLMProxy(DirectProxy):
    """Relays calls to LiteLLM's providers, and records each in one span.

    Everything but the backends is that of :class:`~agl_core.proxy.DirectProxy`: routes, streams,
    capture, control, tokens, limits and arguments. Each entry of the model list is a deployment of
    LiteLLM's router; which of them answers a call is the proxy's decision, since it knows rollouts,
    health and what is in flight. No server of LiteLLM's is started.
    """

    upstream_spec: ClassVar[UpstreamSpec] = UpstreamSpec(parse_model_list, LiteLLMUpstream)
