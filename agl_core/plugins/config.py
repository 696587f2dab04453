"""Checking a component's options against its pydantic model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agl_core.errors import ConfigError
from agl_core.plugins.registry import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

__all__ = ["validate_config"]

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
        mistakes = [_explain(model, path, detail) for detail in error.errors()]
        (first_path, first), *others = mistakes
        message = "; ".join([first, *(f"{where}: {what}" for where, what in others)])
        raise ConfigError(message, path=first_path) from error


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
