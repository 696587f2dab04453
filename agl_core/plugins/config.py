"""Checking a component's options against its pydantic model."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agl_core.errors import ConfigError
from agl_core.plugins.registry import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

__all__ = ["check_config", "validate_config"]

_SECRETIVE = ("key", "password", "secret", "token", "uri", "url")


def validate_config(
    model: type[BaseModel], config: Mapping[str, Any], *, path: str = ""
) -> BaseModel:
    """Return ``config`` as an instance of ``model``.

    Args:
        model: The component's config model.
        config: Options by name.
        path: Path to ``config`` in whatever it is part of; stands before every mistake.

    Raises:
        ConfigError: With one ``path.to.option: what is wrong`` per mistake, on one line.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(config)
    except ValidationError as error:
        raise _config_error(model, path, error.errors()) from error


def check_config(
    model: type[BaseModel], config: Mapping[str, Any], *, path: str, absent: Container[str]
) -> None:
    """Check ``config`` as :func:`validate_config` does, but for what is to be added to it later.

    Args:
        model: The component's config model.
        config: Options by name.
        path: Path to ``config``, for messages.
        absent: Required options that are not missed.

    Raises:
        ConfigError: As :func:`validate_config`.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(config)
    except ValidationError as error:
        details = [
            d for d in error.errors() if d["type"] != "missing" or str(d["loc"][0]) not in absent
        ]
        if details:
            raise _config_error(model, path, details) from error


def _config_error(
    model: type[BaseModel], path: str, details: Iterable[ErrorDetails]
) -> ConfigError:
    (first_path, first), *others = (_explain(model, path, detail) for detail in details)
    message = "; ".join([first, *(f"{where}: {what}" for where, what in others)])
    return ConfigError(message, path=first_path)


def _explain(model: type[BaseModel], path: str, detail: ErrorDetails) -> tuple[str, str]:
    location = detail["loc"]
    where = ".".join(str(part) for part in (path, *location) if part != "")
    if detail["type"] == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        hint = did_you_mean(str(location[-1]), known) or _list_of(known)
        return where, f"unknown option{hint}"
    if detail["type"] == "missing":
        return where, "is missing"
    what = detail["msg"].removeprefix("Value error, ")
    value = detail.get("input")
    if isinstance(value, (str, int, float, bool)) and not _is_secret(location):
        what = f"{what}, not {_shorten(repr(value))}"
    return where, what[0].lower() + what[1:] if what else detail["type"]


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the (possibly nested) model at ``location`` takes."""
    from pydantic import BaseModel

    current: type[BaseModel] = model
    for part in location:
        field = current.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        current = inner
    return sorted(field.alias or name for name, field in current.model_fields.items())


def _list_of(known: Iterable[str]) -> str:
    words = ", ".join(known)
    return f" (known: {words})" if words else ""


def _is_secret(location: tuple[int | str, ...]) -> bool:
    words = [part.lower() for part in cast("tuple[object, ...]", location) if isinstance(part, str)]
    return any(hint in word for word in words for hint in _SECRETIVE)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
