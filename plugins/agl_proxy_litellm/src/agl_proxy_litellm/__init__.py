"""The LLM proxy for the providers that LiteLLM knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_proxy_litellm.proxy import LiteLLMProxy

__all__ = ["LiteLLMProxy"]

__getattr__, __dir__ = lazy_names(__name__, {"LiteLLMProxy": "agl_proxy_litellm.proxy"})
