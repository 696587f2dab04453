"""Checks a component's options against its pydantic model."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from agl_core.errors import ConfigError, UnknownOptionError
from agl_core.plugins._suggest import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    M = TypeVar("M", bound=BaseModel)

MODEL_ATTRIBUTE: Final = "config_model"
"""Attribute of an ``__init__`` that is :func:`~agl_core.plugins.configured_by` a model."""

# Messages do not repeat values of options with these words; a URL may contain a password.
_SECRETIVE = ("key", "password", "secret", "token", "uri", "url")


def config_model_of(factory: object) -> type[BaseModel] | None:
    """Return the config model that a class's constructor takes, or None."""
    return getattr(getattr(factory, "__init__", None), MODEL_ATTRIBUTE, None)


def validate_config(model: type[M], config: Mapping[str, Any], *, path: str = "") -> M:
    """Return ``config`` as an instance of ``model``.

    Args:
        model: The component's config model.
        config: Options by name.
        path: Path of ``config`` in its configuration; prefix of each mistake's path.

    Raises:
        ConfigError: With one ``path.to.option: what is wrong`` per mistake, on one line.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(config)
    except ValidationError as error:
        raise _config_error(model, config, path, error.errors()) from error


def check_config(
    model: type[BaseModel], config: Mapping[str, Any], *, path: str, absent: Container[str]
) -> None:
    """Check ``config`` as :func:`validate_config` does, except for options that are added later.

    Args:
        model: The component's config model.
        config: Options by name.
        path: Path to ``config``, for messages.
        absent: Options that may be missing although they are required.

    Raises:
        ConfigError: As :func:`validate_config`.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(config)
    except ValidationError as error:
        details = [d for d in error.errors() if not _may_be_added(d, absent)]
        if details:
            raise _config_error(model, config, path, details) from error


def _may_be_added(detail: ErrorDetails, absent: Container[str]) -> bool:
    return detail["type"] == "missing" and str(detail["loc"][0]) in absent


def _config_error(
    model: type[BaseModel],
    config: Mapping[str, Any],
    path: str,
    details: Iterable[ErrorDetails],
) -> ConfigError:
    # pydantic reports one error for each member of a union; join them into one message.
    complaints: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    kinds: set[str] = set()
    for detail in details:
        kinds.add(detail["type"])
        location = _keys_only(config, detail)
        where = ".".join(str(part) for part in (path, *location) if part != "")
        said = complaints.setdefault(where, [])
        if (what := _explain(model, location, detail)) not in said:
            said.append(what)
        values.setdefault(where, _value_of(location, detail))
    mistakes = [(where, " or ".join(said) + values[where]) for where, said in complaints.items()]
    (first_path, first), *others = mistakes
    message = "; ".join([first, *(f"{where}: {what}" for where, what in others)])
    unbindable = not {"extra_forbidden", "missing"}.isdisjoint(kinds)
    return (UnknownOptionError if unbindable else ConfigError)(message, path=first_path)


def _keys_only(config: Mapping[str, Any], detail: ErrorDetails) -> tuple[int | str, ...]:
    """Return the location of the mistake, without pydantic's tags for members of a union."""
    location = detail["loc"]
    kept: list[int | str] = []
    current: Any = config
    for depth, part in enumerate(location):
        is_key = isinstance(current, Mapping) and part in current
        # A tuple that is too short lacks the item that the mistake is about.
        is_index = isinstance(part, int) and part < _length(current)
        if is_key or is_index:
            current = cast("Any", current)[part]
        elif detail["type"] != "missing" or depth < len(location) - 1:
            continue
        kept.append(part)
    return tuple(kept)


def _length(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list) else 0


def _explain(model: type[BaseModel], location: tuple[int | str, ...], detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        return f"unknown option{did_you_mean(str(location[-1]), known) or _list_of(known)}"
    if detail["type"] == "missing":
        return "is missing"
    what = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    what = what.split(", unable to parse")[0]
    return what[:1].lower() + what[1:]


def _value_of(location: tuple[int | str, ...], detail: ErrorDetails) -> str:
    value = detail.get("input")
    if detail["type"] in ("extra_forbidden", "missing") or _is_secret(location):
        return ""
    if not isinstance(value, (str, int, float, bool)):
        return ""
    text = repr(value)
    return f", not {text if len(text) <= 60 else text[:57] + '...'}"


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the (possibly nested) model at ``location``."""
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
    words = [str(part).lower() for part in location]
    return any(hint in word for word in words for hint in _SECRETIVE)
