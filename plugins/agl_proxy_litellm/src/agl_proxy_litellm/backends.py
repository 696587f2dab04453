"""Backends that LiteLLM's router calls, read from a model list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from agl_core.errors import ConfigError
from agl_core.genai import Protocol
from agl_proxy_direct import (
    Backend,
    ModelEntry,
    ModelParams,
    providers,
    read_base_url,
    read_model_list,
    refuse_references,
    resolve_secret,
)
from agl_proxy_litellm.arguments import PARAMETERS
from agl_proxy_litellm.library import library

__all__ = ["OPENAI_LIKE", "LiteLLMBackend", "check_received", "parse_model_list"]

OPENAI_LIKE: Final = frozenset({"openai", "hosted_vllm"})
"""Providers whose servers speak OpenAI's protocols, so nothing is translated."""

_ANY: Final[tuple[Protocol, ...]] = ("chat", "completions", "embeddings")
_PROTOCOLS: Final[Mapping[str, tuple[Protocol, ...]]] = {
    "openai": (*_ANY, "responses"),
    "anthropic": ("chat", "completions", "messages"),
}
_SECRET_NAME: Final = re.compile("credential|key|password|secret|token", re.IGNORECASE)
_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
"""Environment variables that LiteLLM reads keys from. Calls that bypass LiteLLM need them too."""


_KEY_DECIDES: Final = OPENAI_LIKE | {"anthropic"}
"""Providers to which LiteLLM sends the entry's key and no other credentials."""
_ROUTING: Final = frozenset(
    {"custom_llm_provider", "max_retries", "order", "rpm", "tags", "tpm", "weight"}
)


@dataclass(frozen=True, slots=True)
class LiteLLMBackend(Backend):
    """A deployment of LiteLLM's router."""

    params: tuple[tuple[str, Any], ...] = ()
    """``litellm_params`` of the deployment."""

    def credentials(self) -> Iterator[str]:
        yield from Backend.credentials(self)
        for name, value in self.params:
            if isinstance(value, str) and _SECRET_NAME.search(name):
                yield value

    def __hash__(self) -> int:
        return Backend.__hash__(self)

    @property
    def speaks_openai(self) -> bool:
        """Whether the agent gets the server's bytes unchanged."""
        return self.provider in OPENAI_LIKE


def parse_model_list(model_list: Sequence[Mapping[str, Any]]) -> tuple[Backend, ...]:
    """Return the backends of a model list.

    ``model`` has LiteLLM's form ``PROVIDER/MODEL``. A name without a provider that LiteLLM knows,
    but with an ``api_base``, is a model on a server that speaks OpenAI's protocols.

    Raises:
        ConfigError: An entry is invalid; the message starts with its path.
    """
    return tuple(_backend(entry, where) for entry, where in read_model_list(model_list))


def check_received(model_list: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a model list from HTTP that would make LiteLLM send secrets of this process.

    LiteLLM completes an entry from the environment: keys, cloud credentials, files. So an entry
    from HTTP may change the URL only with a key of its own, and may set only what a model reads.

    Raises:
        ConfigError: An entry may only be in the proxy's own configuration.
    """
    refuse_references(model_list)
    for entry, where in read_model_list(model_list):
        params = entry.litellm_params
        base = params.api_base or params.base_url
        provider, model = _provider(params, base, where)
        # Some providers of LiteLLM take a URL as the model's name, and send the call there.
        url_in = "api_base" if base else "model" if "://" in model else None
        if url_in is not None and provider not in _KEY_DECIDES:
            raise ConfigError(
                f"the URL of {provider} is read from the proxy's own configuration, not from what "
                "comes over HTTP: LiteLLM would send this process's credentials to it",
                path=f"{where}.{url_in}",
            )
        if base and params.api_key is None:
            raise ConfigError(
                "an entry that comes over HTTP with an api_base needs a key, else LiteLLM takes "
                "the proxy's own from the environment; a server without keys takes any, e.g. "
                "'none'",
                path=f"{where}.api_key",
            )
        for name in sorted((params.model_extra or {}).keys() - PARAMETERS - _ROUTING):
            raise ConfigError(
                "read from the proxy's own configuration, not from what comes over HTTP",
                path=f"{where}.{name}",
            )


def _backend(entry: ModelEntry, where: str) -> LiteLLMBackend:
    params, extra = entry.litellm_params, entry.litellm_params.model_extra or {}
    given = params.api_base or params.base_url
    provider, model = _provider(params, given, where)
    known = providers().get(provider)
    home = known.api_base if known else ""
    base, login = _base_url(given or home, provider, f"{where}.api_base")
    key = resolve_secret(params.api_key, f"{where}.api_key")
    if key is None and provider in _KEYS:
        key = os.environ.get(_KEYS[provider])
    deployment: dict[str, Any] = {
        **{name: _resolved(value, f"{where}.{name}") for name, value in extra.items()},
        "model": f"{provider}/{model}",
        "api_key": key,
        # LiteLLM appends /v1 for Anthropic itself.
        "api_base": base.removesuffix("/v1") if provider == "anthropic" else base or None,
    }
    version = entry.model_info.get("version")
    is_vllm = provider == "hosted_vllm"
    return LiteLLMBackend(
        model_name=entry.model_name,
        model=model,
        provider=provider,
        api_base=base or provider,
        api_key=key,
        headers=(*login, *params.extra_headers.items()),
        auth=known.auth if known else "bearer",
        provider_headers=known.headers if known else (),
        protocols=params.protocols or _PROTOCOLS.get(provider, _ANY),
        token_ids=is_vllm if params.token_ids is None else params.token_ids,
        logprobs=is_vllm if params.logprobs is None else params.logprobs,
        stream_usage=True,
        timeout=params.timeout,
        read_timeout=params.stream_timeout or params.timeout,
        connect_timeout=params.connect_timeout,
        max_parallel=params.max_parallel_requests,
        upstream_defaults=tuple(_added_by_router(extra)),
        version=None if version is None else str(version),
        params=tuple((name, value) for name, value in deployment.items() if value is not None),
    )


def _added_by_router(extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a deployment that the router adds to requests, without secrets."""
    body: Any = extra.get("extra_body")
    given = {**extra, **cast("dict[str, Any]", body)} if isinstance(body, dict) else extra
    for name, value in given.items():
        if name in _ROUTING or name == "extra_body":
            continue
        if name in PARAMETERS or not _SECRET_NAME.search(name):
            yield name, value


def _resolved(value: Any, where: str) -> Any:
    return resolve_secret(value, where) if isinstance(value, str) else value


def _provider(params: ModelParams, base: str | None, where: str) -> tuple[str, str]:
    """Return LiteLLM's names for provider and model."""
    litellm = library()
    try:
        model, provider, _, _ = litellm.get_llm_provider(
            params.model, (params.model_extra or {}).get("custom_llm_provider"), base
        )
    except litellm.BadRequestError:
        if base is not None:
            return "openai", params.model
        known = "see https://docs.litellm.ai/docs/providers for the providers"
        raise ConfigError(
            f"LiteLLM has no provider for {params.model!r}: write PROVIDER/MODEL ({known}), "
            "or add the api_base of a server that speaks OpenAI's protocols",
            path=f"{where}.model",
        ) from None
    return str(provider), str(model)


def _base_url(base: str, provider: str, where: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return a provider's base URL, and the header of a login in it.

    The URL is empty for a provider whose URL LiteLLM knows.
    """
    if not base:
        if provider == "hosted_vllm":
            raise ConfigError(
                "hosted_vllm needs the URL of its server, e.g. http://gpu0:8000/v1", path=where
            )
        return "", ()
    base, login = read_base_url(base.rstrip("/"), where)
    in_v1 = provider in OPENAI_LIKE or provider == "anthropic"
    return base + "/v1" if in_v1 and not urlsplit(base).path else base, login
