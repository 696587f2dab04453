"""Backends, and the model list that describes them in LiteLLM's form.

::

    [{"model_name": "qwen",
      "litellm_params": {"model": "hosted_vllm/Qwen/Qwen3-8B", "api_base": "http://gpu0:8000/v1"}}]

Several entries of one ``model_name`` share its calls. The part of ``model`` before the first ``/``
is the provider if a plugin provides one of that name (hook ``agl_provider``). Otherwise all of it
is the name of a model on a server that speaks OpenAI's protocols.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agl_core.errors import ConfigError
from agl_core.genai import Protocol
from agl_core.plugins import ProviderSpec, get_registry
from agl_proxy_direct.hooks import agl_provider

__all__ = [
    "Backend",
    "ModelEntry",
    "ModelParams",
    "complete_model_list",
    "parse_model_list",
    "providers",
    "read_base_url",
    "read_model_list",
    "refuse_references",
    "resolve_secret",
]

_SECRET_NAME: Final = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TIMEOUT: Final = 600.0
"""As the OpenAI SDK has it, in seconds."""
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds: over a slow line a connection takes one or two."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_COMPATIBLE: Final = ProviderSpec(
    "openai-compatible", protocols=("chat", "completions", "embeddings")
)


def providers() -> dict[str, ProviderSpec]:
    """Return the providers of this package and of all installed plugins, by name."""
    # This package's own providers do not pass through the registry, so the proxy also works with
    # an allow-list that names `proxy.direct` and not its providers.
    installed: list[ProviderSpec] = [spec for _, spec in get_registry().resolved("provider")]
    return {spec.name: spec for spec in (*agl_provider(), *installed)}


# Parameters of LiteLLM's router; they are not sent to a model.
_ROUTER_ONLY: Final = frozenset(
    {
        "custom_llm_provider",
        "max_retries",
        "order",
        "rpm",
        "tags",
        "tpm",
        "use_in_pass_through",
        "weight",
    }
)


class ModelParams(BaseModel):
    """``litellm_params`` of an entry. Any other key is a default for requests without it."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=False)

    model: str = Field(min_length=1)
    api_base: str | None = None
    base_url: str | None = Field(default=None, description="Another name of api_base")
    api_key: str | None = Field(
        default=None, description='A key, or "os.environ/NAME" to read it from a variable'
    )
    timeout: float = Field(default=_TIMEOUT, gt=0, description="Longest call, in seconds")
    stream_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Longest wait for the next bytes, in seconds; None: as timeout",
    )
    connect_timeout: float = Field(
        default=_CONNECT_TIMEOUT, gt=0, description="Longest wait for a connection, in seconds"
    )
    max_parallel_requests: int | None = Field(
        default=None, ge=1, description="Calls in flight; further calls wait, fairly by rollout"
    )
    extra_headers: dict[str, str] = Field(default_factory=dict)
    protocols: tuple[Protocol, ...] | None = Field(
        default=None, description="Protocols that the backend speaks; by default its provider's"
    )
    token_ids: bool | None = Field(default=None, description="Request token ids in every call")
    logprobs: bool | None = Field(
        default=None, description="Request log-probabilities in every call"
    )

    @field_validator("extra_headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or _CONTROL.search(value):
                raise ValueError(f"{name[:80]!r} is not a valid HTTP header")
        return headers


class ModelEntry(BaseModel):
    """One entry of a model list."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model_name: str = Field(min_length=1)
    litellm_params: ModelParams
    model_info: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backend:
    """One server of one model. Backends of equal configuration are equal."""

    model_name: str
    """The model's name for agents."""
    model: str
    """The model's name on the server."""
    provider: str
    api_base: str
    protocols: tuple[Protocol, ...]
    api_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    token_ids: bool = False
    logprobs: bool = False
    stream_usage: bool = False
    timeout: float = _TIMEOUT
    read_timeout: float = _TIMEOUT
    connect_timeout: float = _CONNECT_TIMEOUT
    max_parallel: int | None = None
    defaults: tuple[tuple[str, Any], ...] = ()
    """Parameters of requests that do not have them."""
    upstream_defaults: tuple[tuple[str, Any], ...] = ()
    """Those that the upstream itself adds, as LiteLLM's router does."""
    version: str | None = None
    auth: Literal["bearer", "x-api-key"] = "bearer"
    """How the key is sent; see :class:`agl_core.plugins.ProviderSpec`."""
    provider_headers: tuple[tuple[str, str], ...] = ()
    """Headers of the provider; an agent's own headers take precedence."""

    def credentials(self) -> Iterator[str]:
        """Yield the secrets that calls to this backend carry."""
        if self.api_key is not None:
            yield self.api_key
        for name, value in self.headers:
            if _SECRET_NAME.search(name):
                yield value

    def url(self, endpoint: str) -> str:
        """Return the URL of an endpoint, e.g. of ``/chat/completions``."""
        return self.api_base + endpoint

    def __hash__(self) -> int:  # defaults may hold lists
        return hash((self.model_name, self.model, self.api_base))


def parse_model_list(model_list: Sequence[Mapping[str, Any]]) -> tuple[Backend, ...]:
    """Return the backends of a model list.

    Raises:
        ConfigError: An entry is invalid; the message starts with its path.
    """
    return tuple(_backend(entry, where) for entry, where in read_model_list(model_list))


def complete_model_list(model_list: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a model list with addresses and keys of providers from environment variables.

    An entry such as ``openai/gpt-4.1`` that names no base URL gets that of ``OPENAI_BASE_URL``, and
    if it has no key that of ``OPENAI_API_KEY``, as in LiteLLM and in OpenAI's client. An entry with
    a base URL gets neither: the key would go to that server. Only for lists that this process
    configures, not for those that come over HTTP.

    Raises:
        ConfigError: An entry is invalid; the message starts with its path.
    """
    return [
        _completed(entry).model_dump(exclude_unset=True) for entry, _ in read_model_list(model_list)
    ]


def _completed(entry: ModelEntry) -> ModelEntry:
    params = entry.litellm_params
    provider = _provider(params.model)
    if provider is None or params.api_base or params.base_url:
        return entry
    found = {
        "api_base": os.environ.get(provider.base_variable),
        "api_key": params.api_key or os.environ.get(provider.key_variable) or None,
    }
    return entry.model_copy(update={"litellm_params": params.model_copy(update=found)})


def read_model_list(model_list: Sequence[Mapping[str, Any]]) -> Iterator[tuple[ModelEntry, str]]:
    """Yield the entries of a model list, and the path of each one's parameters for messages.

    Raises:
        ConfigError: An entry is invalid.
    """
    for index, item in enumerate(model_list):
        where = f"model_list.{index}"
        try:
            entry = ModelEntry.model_validate(item)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join([where, *map(str, first["loc"])])
            raise ConfigError(first["msg"], path=path) from None
        yield entry, f"{where}.litellm_params"


def _backend(entry: ModelEntry, where: str) -> Backend:
    params = entry.litellm_params
    prefix, _, rest = params.model.partition("/")
    known = _provider(params.model)
    provider = known or _COMPATIBLE
    base = (params.api_base or params.base_url or provider.api_base).rstrip("/")
    if not base:
        raise ConfigError(
            f"{params.model} needs a base URL, e.g. http://127.0.0.1:8000/v1, or a provider, e.g. "
            f"openai/{params.model}",
            path=f"{where}.api_base",
        )
    base, login = read_base_url(base, f"{where}.api_base")
    if not urlsplit(base).path:
        base += "/v1"
    version = entry.model_info.get("version")
    extra = params.model_extra or {}
    return Backend(
        model_name=entry.model_name,
        model=rest if known else params.model,
        provider=prefix if known else "openai-compatible",
        api_base=base,
        api_key=resolve_secret(params.api_key, f"{where}.api_key"),
        headers=(*login, *params.extra_headers.items()),
        auth=provider.auth,
        provider_headers=provider.headers,
        protocols=params.protocols or cast("tuple[Protocol, ...]", provider.protocols),
        token_ids=provider.token_ids if params.token_ids is None else params.token_ids,
        logprobs=provider.logprobs if params.logprobs is None else params.logprobs,
        stream_usage=provider.stream_usage,
        timeout=params.timeout,
        read_timeout=params.stream_timeout or params.timeout,
        connect_timeout=params.connect_timeout,
        max_parallel=params.max_parallel_requests,
        defaults=tuple((key, extra[key]) for key in extra if key not in _ROUTER_ONLY),
        version=None if version is None else str(version),
    )


def _provider(model: str) -> ProviderSpec | None:
    prefix, slash, _ = model.partition("/")
    return providers().get(prefix) if slash else None


def resolve_secret(value: str | None, where: str) -> str | None:
    """Return a value; ``os.environ/NAME`` is read from the environment variable NAME.

    Raises:
        ConfigError: The variable is not set.
    """
    if value is not None and value.startswith("os.environ/"):
        name = value.removeprefix("os.environ/")
        if name not in os.environ:
            raise ConfigError(f"the environment variable {name} is not set", path=where)
        value = os.environ[name]
    if value is not None and _CONTROL.search(value):
        raise ConfigError("the value holds a line break or another control character", path=where)
    return value


def read_base_url(base: str, where: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return a base URL without user name and password, and the header that carries them.

    A base URL is part of messages, spans and the status; a header is not.

    Raises:
        ConfigError: It is not the URL of a directory on an HTTP server.
    """
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port out of range, or an invalid address
        valid = False
    if not valid or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f]", base):
        shown = re.sub(r"[?#].*", "", re.sub("//.*@", "//", base))
        raise ConfigError(
            f"{shown!r} is not an HTTP URL, e.g. http://127.0.0.1:8000/v1", path=where
        )
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return base, ()
    basic = base64.b64encode(unquote(login).encode()).decode()
    return parts._replace(netloc=host).geturl(), (("authorization", f"Basic {basic}"),)


def refuse_references(value: Any, where: str = "model_list") -> None:
    """Refuse references to secrets of this process in a model list that came over HTTP.

    Who sends a model list also chooses the URL that gets the key. A reference in it would send any
    variable of this process there, the proxy's own secret included. LiteLLM looks up ``oidc/...``
    like ``os.environ/...``.

    Raises:
        ConfigError: A key or a value holds a reference; the message starts with its path.
    """
    if isinstance(value, str):
        if "os.environ/" in value or value.startswith("oidc/"):
            raise ConfigError(
                "references to the environment are read from the proxy's own configuration, not "
                "from what comes over HTTP; send the value itself",
                path=where,
            )
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            refuse_references(key, where)
            refuse_references(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            refuse_references(item, f"{where}.{index}")
