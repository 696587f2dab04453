"""Environment variables that the framework reads, and functions that resolve their values.

An argument has precedence over the variable, and the variable over the fallback.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final, overload

from agl_core.errors import InvalidArgumentError

__all__ = [
    "LightningEnvVar",
    "resolve_bool_env_var",
    "resolve_int_env_var",
    "resolve_str_env_var",
]

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class LightningEnvVar(StrEnum):
    """The environment variables; a member has the name of its variable."""

    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    """bool: log what emitters emit."""
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    """bool: whether execution strategies wrap the store in the facade they need."""
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    """``algorithm``, ``runner`` or ``both``: which side of a run this process is."""
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    """Host of the store server."""
    AGL_SERVER_PORT = "AGL_SERVER_PORT"
    """int: port of the store server."""
    AGL_AUTH_TOKEN = "AGL_AUTH_TOKEN"  # noqa: S105 - the name, not a token
    """Token that clients send and that the store server requires."""
    AGL_PLUGINS = "AGL_PLUGINS"
    """Comma-separated plugins to use; all others are disabled."""
    AGL_DISABLE_PLUGINS = "AGL_DISABLE_PLUGINS"
    """Comma-separated plugins to disable."""
    AGL_TRACE_HOOKS = "AGL_TRACE_HOOKS"
    """File to which each process appends its calls of plugins' hooks, as lines of JSON."""


@overload
def resolve_bool_env_var(
    env_var: LightningEnvVar | str, override: bool | None = None, *, fallback: bool
) -> bool: ...
@overload
def resolve_bool_env_var(
    env_var: LightningEnvVar | str, override: bool, fallback: bool | None = None
) -> bool: ...
@overload
def resolve_bool_env_var(
    env_var: LightningEnvVar | str, override: bool | None = None, fallback: bool | None = None
) -> bool | None: ...
def resolve_bool_env_var(
    env_var: LightningEnvVar | str, override: bool | None = None, fallback: bool | None = None
) -> bool | None:
    """Return a boolean.

    Args:
        env_var: The variable. Its value is 1, true, yes, on or 0, false, no, off, in any case;
            surrounding blanks are ignored.
        override: The argument of the caller; None reads the variable.
        fallback: The value if the variable is not set.

    Raises:
        InvalidArgumentError: The variable is set to something else.
    """
    text = _text(env_var)
    if override is not None or text is None:
        return fallback if override is None else override
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InvalidArgumentError(
        f"{_name(env_var)} is {text!r}; it takes one of 1, true, yes, on, 0, false, no, off"
    )


@overload
def resolve_int_env_var(
    env_var: LightningEnvVar | str, override: int | None = None, *, fallback: int
) -> int: ...
@overload
def resolve_int_env_var(
    env_var: LightningEnvVar | str, override: int, fallback: int | None = None
) -> int: ...
@overload
def resolve_int_env_var(
    env_var: LightningEnvVar | str, override: int | None = None, fallback: int | None = None
) -> int | None: ...
def resolve_int_env_var(
    env_var: LightningEnvVar | str, override: int | None = None, fallback: int | None = None
) -> int | None:
    """Return a whole number; see :func:`resolve_bool_env_var`.

    Raises:
        InvalidArgumentError: The variable is not set to a whole number.
    """
    text = _text(env_var)
    if override is not None or text is None:
        return fallback if override is None else override
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{_name(env_var)} is {text!r}; it takes a whole number"
        ) from None


@overload
def resolve_str_env_var(
    env_var: LightningEnvVar | str, override: str | None = None, *, fallback: str
) -> str: ...
@overload
def resolve_str_env_var(
    env_var: LightningEnvVar | str, override: str, fallback: str | None = None
) -> str: ...
@overload
def resolve_str_env_var(
    env_var: LightningEnvVar | str, override: str | None = None, fallback: str | None = None
) -> str | None: ...
def resolve_str_env_var(
    env_var: LightningEnvVar | str, override: str | None = None, fallback: str | None = None
) -> str | None:
    """Return a text unchanged; see :func:`resolve_bool_env_var`."""
    text = _text(env_var)
    if override is not None or text is None:
        return fallback if override is None else override
    return text


def _name(env_var: LightningEnvVar | str) -> str:
    return env_var.value if isinstance(env_var, LightningEnvVar) else env_var


def _text(env_var: LightningEnvVar | str) -> str | None:
    return os.environ.get(_name(env_var))
