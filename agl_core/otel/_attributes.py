"""Converts nested values to the flat attributes of a span, and back.

A span's attributes are a flat mapping whose values are primitives or sequences of one primitive
type. Nested values are written with dotted keys, in which list positions are numbers::

    {"input": {"messages": [{"role": "user"}]}}  <->  {"input.messages.0.role": "user"}
"""

from __future__ import annotations

import json
import logging
import numbers
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from agl_core.errors import error_message
from agl_core.types import Attributes, AttributeValue

_logger = logging.getLogger(__name__)

_PRIMITIVES: Final = (str, bool, int, float)


# -- nesting -------------------------------------------------------------------------------------


def flatten_attributes(nested: Any, *, expand_leaf_lists: bool = False) -> dict[str, Any]:
    """Flatten dicts and lists into dotted keys.

    Lists of one primitive type stay lists; other lists become one key per position. ``1`` and
    ``1.0`` have different types. Empty dicts and lists have no key and are lost. Any value that is
    neither a dict nor a list is a leaf and stays unchanged.

    Args:
        nested: A dict or list; a leaf gets the key ``""``.
        expand_leaf_lists: Give lists of one primitive type a key per position, too.

    Raises:
        ValueError: A dict has a key that is not a string.
    """
    flat: dict[str, Any] = {}
    _flatten(nested, "", flat, expand_leaf_lists)
    return flat


def _flatten(value: Any, path: str, flat: dict[str, Any], expand: bool) -> None:
    prefix = f"{path}." if path else ""
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                where = f" under {path!r}" if path else ""
                raise ValueError(f"an attribute key must be a string, not {key!r}{where}")
            _flatten(item, prefix + key, flat, expand)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        types: set[type] = {type(item) for item in items}
        primitive = bool(items) and types <= set(_PRIMITIVES)
        if primitive and len(types) == 1 and path and not expand:
            flat[path] = items
            return
        if primitive and len(types) > 1:
            names = ", ".join(sorted(kind.__name__ for kind in types))
            _logger.warning("the list at %r mixes %s; it gets one key per position", path, names)
        for index, item in enumerate(items):
            _flatten(item, f"{prefix}{index}", flat, expand)
    else:
        flat[path] = value


def unflatten_attributes(flat: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """Nest dotted keys; the inverse of :func:`flatten_attributes`.

    A level becomes a list if its keys are exactly the numbers from 0 on. If one key holds a value
    and another is below it (``a`` and ``a.b``), the value of the upper key is dropped.
    """
    root: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {"": root}  # by path, with its trailing dot
    opened: list[tuple[dict[str, Any], str, dict[str, Any]]] = []  # parent, key, level
    for path, value in flat.items():
        head, dot, key = path.rpartition(".")
        level = levels.get(head + dot)
        if level is None:
            level = _open(head, levels, opened)
        if f"{path}." not in levels:
            level[key] = value
    for parent, key, level in reversed(opened):  # inner levels first
        parent[key] = _as_list(level)
    return _as_list(root)


def _open(
    path: str,
    levels: dict[str, dict[str, Any]],
    opened: list[tuple[dict[str, Any], str, dict[str, Any]]],
) -> dict[str, Any]:
    """Create the level at ``path`` and the missing levels above it; return it."""
    level, prefix = levels[""], ""
    for key in path.split("."):
        prefix += f"{key}."
        if prefix not in levels:
            levels[prefix] = level[key] = {}
            opened.append((level, key, levels[prefix]))
        level = levels[prefix]
    return level


def _as_list(level: dict[str, Any]) -> dict[str, Any] | list[Any]:
    if "0" in level and all(str(index) in level for index in range(len(level))):
        return [level[str(index)] for index in range(len(level))]
    return level


# -- prefixes ------------------------------------------------------------------------------------


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the attributes at ``prefix`` and below it, with their full keys."""
    below = f"{prefix}."
    return {
        key: value for key, value in attributes.items() if key == prefix or key.startswith(below)
    }


def filter_and_unflatten_attributes(
    attributes: Mapping[str, Any], prefix: str
) -> dict[str, Any] | list[Any]:
    """Return the attributes below ``prefix``, nested.

    Raises:
        ValueError: ``prefix`` itself has a value, so the result would be ambiguous.
    """
    found = filter_attributes(attributes, prefix)
    if prefix in found:
        raise ValueError(f"attribute {prefix!r} has a value of its own and cannot be nested")
    return unflatten_attributes({key[len(prefix) + 1 :]: value for key, value in found.items()})


# -- values --------------------------------------------------------------------------------------


def sanitize_attribute_value(value: Any, force: bool = True) -> AttributeValue:
    """Convert any value to one that an attribute can hold.

    Primitives stay unchanged, except for lone surrogates in strings. Lists become lists of one
    type: strings, booleans, integers (booleans among integers become 0 and 1) or floats. Any other
    value becomes JSON text.

    Args:
        value: The value.
        force: Write a value that has no JSON form as its ``str``, or its type if that raises.

    Raises:
        ValueError: The value has no JSON form and ``force`` is off, or it contains itself.
    """
    nested: Any = value
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, _PRIMITIVES):
        return value
    if isinstance(value, numbers.Real):  # numpy's scalars, among others
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, (list, tuple)):
        uniform = _uniform(cast("Sequence[Any]", value))
        if uniform is not None:
            return uniform
    try:
        return utf8(json.dumps(nested, default=safe_text if force else None, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(nested).__name__} has no JSON form: {error}") from error


def _uniform(items: Sequence[Any]) -> AttributeValue | None:
    if all(isinstance(item, str) for item in items):
        return [utf8(item) for item in items]
    if all(isinstance(item, bool) for item in items):
        return list(items)
    if all(isinstance(item, numbers.Integral) for item in items):
        return [int(item) for item in items]
    if all(isinstance(item, numbers.Real) for item in items):
        return [float(item) for item in items]
    return None


def utf8(text: str) -> str:
    """Replace lone surrogates: models produce them, and JSON and protobuf cannot carry them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def safe_text(value: object) -> str:
    """Return ``str(value)``, or a description of a value whose ``__str__`` raises."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose text raised {type(error).__name__}>"


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> Attributes:
    """Apply :func:`sanitize_attribute_value` to each value of flat attributes.

    Raises:
        ValueError: A value cannot be converted; the message names its key.
    """
    result: Attributes = {}
    for key, value in attributes.items():
        try:
            result[key] = sanitize_attribute_value(value, force)
        except ValueError as error:
            raise ValueError(f"attribute {key!r}: {error}") from error
    return result


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Check that flat attributes can be stored unchanged.

    Raises:
        ValueError: A key is not a string, or a value is neither a primitive nor a list of one
            primitive type; the message names the key.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"an attribute key must be a string, not {key!r}")
        if isinstance(value, _PRIMITIVES):
            continue
        if isinstance(value, (list, tuple)):
            types: set[type] = {type(item) for item in cast("Sequence[Any]", value)}
            if len(types) <= 1 and types <= set(_PRIMITIVES):
                continue
            raise ValueError(
                f"attribute {key!r}: a list must hold one primitive type, not "
                + ", ".join(sorted(kind.__name__ for kind in types))
            )
        raise ValueError(
            f"attribute {key!r}: expected str, int, float, bool or a list of one of them, "
            f"not {type(value).__name__}"
        )


# -- names and exceptions ------------------------------------------------------------------------


def format_exception_attributes(exception: BaseException) -> Attributes:
    """Describe an exception in the attributes of OpenTelemetry's conventions.

    https://opentelemetry.io/docs/specs/semconv/exceptions/exceptions-spans/
    """
    attributes: Attributes = {
        "exception.type": type(exception).__name__,
        "exception.message": error_message(exception),
        "exception.escaped": True,
    }
    if exception.__traceback__ is not None:
        attributes["exception.stacktrace"] = utf8("".join(traceback.format_exception(exception)))
    return attributes


def full_qualified_name(cls: type) -> str:
    """Return ``module.Class``, or just ``Class`` for a built-in one."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"
