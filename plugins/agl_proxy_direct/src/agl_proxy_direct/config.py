"""Configuration of the direct proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Final, Literal, cast

from pydantic import Field, field_validator, model_validator

from agl_core.plugins import ComponentConfig
from agl_core.store import LightningStore
from agl_serving import (
    LOOPBACK,
    MIN_SECRET_LENGTH,
    LaunchMode,
    PythonServerLauncherArgs,
    is_loopback,
)

__all__ = ["DirectProxyConfig"]

_UNSUPPORTED: Final = {
    "num_workers": "this proxy is one process",
    "litellm_config": "set litellm_params in the model list, and use agl-proxy-litellm for "
    "providers that only LiteLLM knows",
    "middlewares": "this proxy streams, and assigns calls to rollouts, by itself",
    "callbacks": "this proxy records every call with its token ids by itself",
}
"""Arguments of version 0.3's proxy without an equivalent, with the reason."""
_PARTS_OF_0_3: Final = {
    "rollout_attempt",
    "stream_conversion",
    "return_token_ids",
    "opentelemetry",
}
"""Middlewares and callbacks of version 0.3 whose work this proxy always does."""
_LAUNCHER_OPTIONS: Final = ("port", "host", "access_host", "launch_mode")


class DirectProxyConfig(ComponentConfig):
    """Options of :class:`~agl_proxy_direct.DirectProxy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"store"})

    port: int | None = Field(default=None, ge=0, le=65535, kw_only=False)
    """Port; None takes a free one."""
    model_list: Sequence[Mapping[str, Any]] | None = Field(default=None, kw_only=False)
    """Backends, in LiteLLM's form."""
    store: LightningStore | None = Field(default=None, exclude=True, kw_only=False)
    """Store of the spans; may be set later, before the start."""
    host: str | None = Field(default=None, kw_only=False)
    """Interface to listen on; None is loopback. Any other needs ``auth_token`` or ``insecure``."""
    access_host: str | None = None
    """Host in the URL for agents; None is the bound host, "auto" the outbound address."""
    launch_mode: LaunchMode = "thread"
    """``thread``: a thread with an event loop of its own; ``asyncio``: a task of the loop that
    starts the proxy; ``mp``: a process of its own, which leaves the interpreter lock to the
    agents."""
    auth_token: str | None = Field(default=None, min_length=MIN_SECRET_LENGTH)
    """Secret of the tokens that callers send as API key (:func:`agl_serving.mint_token`)."""
    insecure: bool = False
    """Accept calls from a network without a token."""
    allowed_hosts: Sequence[str] = ()
    """Host headers accepted besides localhost and IP addresses, for a proxy without a token.
    Without names, a proxy on a network accepts any."""
    attempt_routes: Sequence[str] = ()
    """Further calls that tokens of attempts and runners may make, e.g. ``POST /rerank``. By default
    they may call models, tokenize, and list the models."""
    num_retries: int = Field(default=2, ge=0)
    """How often a failed call is sent again, to other backends; not after its first byte."""
    queue_timeout: float = Field(default=600.0, gt=0)
    """Longest wait of a call for a free backend or for the end of a pause, in seconds."""
    flush_timeout: float = Field(default=5.0, gt=0)
    """How long the end of a response waits until its span is stored, in seconds."""
    stop_timeout: float = Field(default=30.0, gt=0)
    """How long a stop waits until all spans are stored, in seconds."""
    max_spooled_spans: int = Field(default=20_000, ge=1)
    """Spans that may wait for the store before new calls are refused."""
    history: Literal["exact", "continue"] = "exact"
    """What a call's prompt begins with: ``exact``: the messages that the agent sent, as the
    server's template renders them; ``continue``: the tokens of the conversation's earlier calls as
    they were sampled, reasoning included, where the backend takes prompts as token ids."""
    max_calls_per_rollout: int | None = Field(default=None, ge=1)
    """Model calls that a rollout may make; None is no limit."""
    max_tokens_per_rollout: int | None = Field(default=None, ge=1)
    """Tokens that a rollout may use, prompts included. The call that exceeds it is the last one."""
    max_calls_per_minute: float | None = Field(default=None, gt=0)
    """Rate at which a rollout may call. Bursts of up to ten seconds' worth are allowed."""

    @field_validator("attempt_routes")
    @classmethod
    def _check_routes(cls, routes: Sequence[str]) -> Sequence[str]:
        for route in routes:
            if not re.fullmatch(r"[A-Z]+ (/[^/\s]+)+", route):
                raise ValueError(f"{route!r} is not a call below /v1, e.g. 'POST /rerank'")
        return routes

    @model_validator(mode="before")
    @classmethod
    def _translate_0_3(cls, options: Any) -> Any:
        """Replace the arguments of version 0.3's proxy by those of this one."""
        if not isinstance(options, Mapping):
            return options
        found = dict(cast("Mapping[str, Any]", options))
        for name, reason in _UNSUPPORTED.items():
            if name in found and not _is_default(found.pop(name)):
                raise ValueError(f"{name} of agent-lightning 0.3 is not supported: {reason}")
        launcher = found.pop("launcher_args", None)
        if launcher is None:
            return found
        if not isinstance(launcher, PythonServerLauncherArgs):
            raise ValueError("launcher_args takes agl_serving.PythonServerLauncherArgs")
        defaults = asdict(PythonServerLauncherArgs())
        given = {
            key: value for key, value in asdict(launcher).items() if value != defaults[key]
        } | {"launch_mode": launcher.launch_mode}
        if both := sorted(given.keys() & {k for k in found if found[k] is not None}):
            raise ValueError(f"{both[0]} is given twice, once in launcher_args")
        if others := sorted(given.keys() - set(_LAUNCHER_OPTIONS)):
            raise ValueError(f"launcher_args.{others[0]} is not supported: remove it")
        return found | given

    @model_validator(mode="after")
    def _check_host(self) -> DirectProxyConfig:
        if not (is_loopback(self.host or LOOPBACK) or self.auth_token or self.insecure):
            raise ValueError(
                f"on {self.host} anyone on the network could use these models: set auth_token, or "
                "allow it with insecure=True"
            )
        return self


def _is_default(value: Any) -> bool:
    """Return whether a value is what the proxy does in any case."""
    if isinstance(value, (list, tuple)):
        return _PARTS_OF_0_3.issuperset(cast("Sequence[Any]", value))
    return value in (None, 1, {})
