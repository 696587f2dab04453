"""The live models of a replay: where calls go that the recording does not answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agl_core.genai import Protocol, get_protocol
from agl_core.proxy import LLMProxy
from agl_core.types import LLM, NamedResources
from agl_proxy_direct import Backend

__all__ = ["LiveModels", "live_models", "models_behind"]

_ENVIRONMENT: Final[Mapping[bool, tuple[str, str, str]]] = {
    False: ("OPENAI_BASE_URL", "OPENAI_API_KEY", "https://api.openai.com/v1"),
    True: ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "https://api.anthropic.com"),
}
"""Variables of the endpoint and the key, and the default endpoint, by whether the client is
Anthropic's."""


@dataclass(frozen=True)
class _Endpoint:
    url: str
    api_key: str | None


class LiveModels:
    """The models that the agent would call without a replay.

    Args:
        by_model: Endpoint by the name of the model.
        by_client: Endpoint by whether the client is Anthropic's, for any other model.
    """

    def __init__(
        self, by_model: Mapping[str, _Endpoint], by_client: Mapping[bool, _Endpoint]
    ) -> None:
        self._by_model = by_model
        self._by_client = by_client

    def backend(self, model: str, protocol: Protocol) -> Backend:
        """Return the server of a call; it gets the call as the agent made it."""
        anthropic = get_protocol(protocol).client == "anthropic"
        found = self._by_model.get(model) or self._by_client[anthropic]
        base = found.url.rstrip("/")
        return Backend(
            model_name=model,
            model=model,
            provider="replay",
            api_base=base if urlsplit(base).path else f"{base}/v1",
            api_key=found.api_key,
            protocols=(protocol,),
            auth="x-api-key" if anthropic else "bearer",
        )


def live_models(resources: NamedResources, rollout_id: str, attempt_id: str) -> LiveModels:
    """Return the models in an attempt's resources, or else those in the environment."""
    models = [resource for resource in resources.values() if isinstance(resource, LLM)]
    ids = (rollout_id, attempt_id)
    found = {llm.model: _Endpoint(llm.get_base_url(*ids), llm.api_key) for llm in models}
    if found:
        first = next(iter(found.values()))
        return LiveModels(found, {False: first, True: first})
    environment = {
        anthropic: _Endpoint(os.environ.get(url, default), os.environ.get(key))
        for anthropic, (url, key, default) in _ENVIRONMENT.items()
    }
    return LiveModels({}, environment)


def models_behind(proxy: LLMProxy, rollout_id: str, attempt_id: str) -> LiveModels:
    """Return the models of a proxy, which records the calls of an attempt."""
    names = dict.fromkeys(str(entry["model_name"]) for entry in proxy.get_model_list())
    resources: NamedResources = {name: proxy.as_resource(model=name) for name in names}
    return live_models(resources, rollout_id, attempt_id)
