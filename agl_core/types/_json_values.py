"""Turns what callers hand to a store into JSON values, in the same way for all stores.

A task that is kept in memory and one that is kept in a database reach the agent as the same value.

==========================  =====================================================================
given                       kept
==========================  =====================================================================
str, int, bool, None        the same
float                       the same; None if it is NaN or infinite, which JSON cannot hold
dict                        a dict; keys that are numbers, booleans or None become their JSON text
list, tuple                 a list
set                         a list, sorted by the texts of its items
Decimal, Fraction           a float
NumPy values, tensors       a number, a bool, or nested lists of them
dataclass, model, datetime  what pydantic writes for them
==========================  =====================================================================
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from math import isfinite
from numbers import Integral, Real
from typing import Any, Final, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agl_core.errors import InvalidArgumentError

MAX_NESTING: Final = 128
"""Deepest nesting of lists and dicts. pydantic's parser ends at 200 levels, and requests and
records put a value some levels deeper."""

_MISSING: Final = frozenset({"NAType", "NaTType"})
"""Types of what pandas has where a cell is empty."""

_SETS: Final = (set, frozenset)
_UNCHANGED: Final = frozenset({str, int, bool, type(None)})


def as_json_value(value: Any, name: str) -> Any:
    """Return a copy of a value as JSON values, see the table above.

    An object without a JSON form is copied by :func:`copy.deepcopy`: the memory store keeps the
    copy, and stores that write JSON refuse it.

    Args:
        value: The value; it is not changed.
        name: Name of the value, for messages.

    Raises:
        InvalidArgumentError: A key is not a text, number, boolean or None; two keys have the same
            text; or the nesting is deeper than :data:`MAX_NESTING`.
    """
    return value if type(value) in _UNCHANGED else _walk(value, name, 0)


def _walk(value: Any, name: str, depth: int) -> Any:
    if depth > MAX_NESTING:
        raise InvalidArgumentError(
            f"{name} is nested deeper than {MAX_NESTING} levels, or contains itself; give it as "
            "JSON text instead"
        )
    kind: Any = value.__class__  # without a call of cast(): every task passes here
    if kind is dict:
        made = {
            (key if type(key) is str else _key(key, name)): (
                item if type(item) in _UNCHANGED else _walk(item, name, depth + 1)
            )
            for key, item in value.items()
        }
        if len(made) < len(value):
            raise InvalidArgumentError(
                f"{name} has keys that are the same text in JSON: {list(value)}"
            )
        return made
    if kind is list or kind is tuple:
        return [
            item if type(item) in _UNCHANGED else _walk(item, name, depth + 1) for item in value
        ]
    if kind is float:
        return value if isfinite(value) else None
    if kind in _UNCHANGED:
        return value
    return _other(value, name, depth)


def _key(key: Any, name: str) -> str:
    plain = _plain_number(key)
    if isinstance(plain, str):
        return str.__str__(plain)
    if plain is None or isinstance(plain, (bool, int, float)):
        return json.dumps(plain)
    raise InvalidArgumentError(
        f"{name} has the key {key!r}, which is not a text or a number; JSON has no such keys"
    )


def _plain_number(value: Any) -> Any:
    """Return a number of any library as Python's, and any other value unchanged."""
    if isinstance(value, (str, bool)) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    # Decimal is not a Real by PEP 3141, but has the same conversion.
    if isinstance(value, Real) or type(value).__name__ == "Decimal":
        return float(cast("Any", value))
    return value


def _other(value: Any, name: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        return _walk(dict(cast("Mapping[Any, Any]", value)), name, depth)
    if isinstance(value, _SETS):
        # Their order depends on the hashes of texts in this process; that of the texts does not.
        return sorted(_walk(list(cast("Iterable[Any]", value)), name, depth), key=repr)
    if isinstance(value, (list, tuple)):  # a named tuple, and other subclasses
        return _walk(list(cast("Iterable[Any]", value)), name, depth)
    if isinstance(value, str):
        return str.__str__(value)
    plain = _plain_number(value)
    if isinstance(plain, float):
        return plain if isfinite(plain) else None
    if isinstance(plain, int):
        return plain
    if type(value).__name__ in _MISSING:
        return None
    try:
        made = to_jsonable_python(value, fallback=_convert)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return copy.deepcopy(value)
    return _walk(made, name, depth + 1)


def _convert(value: Any) -> Any:
    """Return what pydantic cannot write as a number or lists: arrays and tensors of any library.

    ``tolist`` is that of NumPy, PyTorch and JAX; TensorFlow's tensors have ``numpy``, and those of
    one value have ``item``.

    Raises:
        TypeError: The value is something else.
    """
    methods = ("tolist", "numpy", "item") if hasattr(value, "shape") else ("tolist",)
    for method in methods:
        convert = None if isinstance(value, type) else getattr(value, method, None)
        if callable(convert):
            return convert()
    raise TypeError(f"a {type(value).__name__} has no JSON form")
