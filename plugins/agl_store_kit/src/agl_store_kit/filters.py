"""Defines filters, sort orders and pages for every store.

A query's arguments become :class:`~agl_core.types.FilterOptions` here. Backends in memory run them
with :func:`agl_store_kit.queries.run_query`; databases translate them and are tested against it.

* Conditions on ordinary fields form one pool that ``_aggregate`` (and/or) combines; without any
  condition everything matches. ``_must`` always holds.
* ``contains`` is a case-sensitive substring; a missing value contains nothing.
* Sorting is stable in both directions: equal keys keep insertion order. A missing time sorts as
  +infinity, a missing string as ``""``, a missing number as 0. No sort field: insertion order.
* Rollouts are also sorted by ``reward`` and ``duration`` (:mod:`agl_store_kit.figures`).
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel

from agl_core.errors import InvalidArgumentError
from agl_core.types import FilterOptions, Rollout, Span

T = TypeVar("T")
Predicate = Callable[[Any], bool]

SPAN_SORT_FIELDS: Final[Mapping[str, Any]] = types.MappingProxyType(
    {
        "sequence_id": 0,
        "start_time": math.inf,
        "end_time": math.inf,
        "name": "",
        "span_id": "",
        "trace_id": "",
        "parent_id": "",
        "rollout_id": "",
        "attempt_id": "",
    }
)
"""Fields that spans can be sorted by, and the sort value of a missing field."""

FIGURES: Final = ("reward", "duration")
"""Figures that rollouts can also be sorted by (:mod:`agl_store_kit.figures`)."""

_OPERATORS: Final = ("exact", "within", "contains")


# -- from arguments ------------------------------------------------------------------------------


def filter_options(
    *, logic: str = "and", must: Mapping[str, Any] | None = None, **conditions: Any
) -> FilterOptions:
    """Build filter options from a query's arguments.

    Args:
        logic: How the conditions combine.
        must: Exact values that always apply.
        **conditions: ``field``, ``field_in`` or ``field_contains``; None means no condition.

    Raises:
        InvalidArgumentError: ``logic`` is neither ``and`` nor ``or``.
    """
    check_logic(logic)
    options: FilterOptions = {"_aggregate": logic}
    for name, value in conditions.items():
        if value is None:
            continue
        field, operator = name, "exact"
        if name.endswith("_in"):
            field, operator = name[:-3], "within"
        elif name.endswith("_contains"):
            field, operator = name[:-9], "contains"
        options.setdefault(field, {})[operator] = value
    if must:
        options["_must"] = {field: {"exact": value} for field, value in must.items()}
    return options


def renamed_filter(new: str, value: T | None, old: str, old_value: T | None) -> T | None:
    """Return the value of a renamed filter; the old name causes a deprecation warning.

    The new name wins when both are given.
    """
    if old_value is None:
        return value
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
    return old_value if value is None else value


def check_logic(logic: str) -> None:
    """Check how filters combine.

    Raises:
        InvalidArgumentError: ``logic`` is neither ``and`` nor ``or``.
    """
    if logic not in ("and", "or"):
        raise InvalidArgumentError(f"filter_logic must be 'and' or 'or', not {logic!r}")


def check_page(limit: int, offset: int, sort_order: str = "asc") -> None:
    """Check the arguments that every query has.

    Raises:
        InvalidArgumentError: A limit below -1, a negative offset, or an unknown direction.
    """
    if limit < -1:
        raise InvalidArgumentError(f"limit must be -1 (unlimited) or more, not {limit}")
    if offset < 0:
        raise InvalidArgumentError(f"offset must be 0 or more, not {offset}")
    if sort_order not in ("asc", "desc"):
        raise InvalidArgumentError(f"sort_order must be 'asc' or 'desc', not {sort_order!r}")


def cut(items: Sequence[T], limit: int, offset: int) -> Sequence[T]:
    """Return one page of the matches."""
    return items[offset:] if limit == -1 else items[offset : offset + limit]


# -- filtering -----------------------------------------------------------------------------------


def compile_filter(options: FilterOptions | None) -> Predicate | None:
    """Return a test for records, or None if everything matches.

    Raises:
        InvalidArgumentError: An unknown operator or aggregate, or one operator twice on a field in
            ``_must``.
        TypeError: A filter is not a mapping.
    """
    if not options:
        return None
    aggregate = options.get("_aggregate", "and")
    if aggregate not in ("and", "or"):
        raise InvalidArgumentError(f"_aggregate must be 'and' or 'or', not {aggregate!r}")
    must = _must_conditions(options.get("_must"))
    pool = [
        test
        for field, conditions in options.items()
        if field not in ("_aggregate", "_must")
        for test in _field_conditions(field, conditions)
    ]
    if aggregate == "or" and len(pool) > 1:
        pool = [_any_of(pool)]
    tests = (*must, *pool)
    if len(tests) <= 1:
        return tests[0] if tests else None
    return lambda record: all(test(record) for test in tests)


def _any_of(tests: Sequence[Predicate]) -> Predicate:
    return lambda record: any(test(record) for test in tests)


def _must_conditions(must: Any) -> list[Predicate]:
    if must is None:
        return []
    groups = cast("Iterable[Any]", (must,) if isinstance(must, Mapping) else must)
    seen: set[tuple[str, str]] = set()
    tests: list[Predicate] = []
    for group in groups:
        if not isinstance(group, Mapping):
            raise TypeError(f"_must holds mappings of field to conditions, not {group!r}")
        for field, conditions in cast("Mapping[str, Any]", group).items():
            for operator in conditions:
                if (field, operator) in seen:
                    raise InvalidArgumentError(f"_must has {operator!r} twice for {field!r}")
                seen.add((field, operator))
            tests += _field_conditions(field, conditions)
    return tests


def _field_conditions(field: str, conditions: Any) -> list[Predicate]:
    if not isinstance(conditions, Mapping):
        raise TypeError(f"the filter of {field!r} must be a mapping, not {conditions!r}")
    tests: list[Predicate] = []
    for operator, value in cast("Mapping[str, Any]", conditions).items():
        if operator not in _OPERATORS:
            known = ", ".join(_OPERATORS)
            raise InvalidArgumentError(f"{field}: unknown operator {operator!r}; known: {known}")
        if value is not None:
            tests.append(_condition(attrgetter(field), operator, value))
    return tests


def _condition(get: Callable[[Any], Any], operator: str, value: Any) -> Predicate:
    if operator == "exact":
        return lambda record: get(record) == value
    if operator == "within":
        if not isinstance(value, Iterable):
            return lambda record: False
        allowed = _membership(cast("Iterable[Any]", value))
        return lambda record: get(record) in allowed
    return lambda record: _contains(get(record), value)


def _membership(values: Iterable[Any]) -> Collection[Any]:
    listed = list(values)
    try:
        return frozenset(listed)
    except TypeError:
        return listed


def _contains(held: Any, part: Any) -> bool:
    if isinstance(held, str):
        return isinstance(part, str) and part in held
    return isinstance(held, Collection) and part in cast("Collection[Any]", held)


# -- sorting -------------------------------------------------------------------------------------


@cache
def sortable_fields(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the sortable fields of a model, and the sort value of a missing field."""
    if model is Span:
        return SPAN_SORT_FIELDS
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        kinds = set(_scalar_kinds(info.annotation))
        if name.endswith("_time"):
            fields[name] = math.inf
        elif kinds == {str}:
            fields[name] = ""
        elif kinds == {int}:
            fields[name] = 0
        elif kinds == {float}:
            fields[name] = 0.0
    if model is Rollout:
        fields |= dict.fromkeys(FIGURES, -math.inf)
    return types.MappingProxyType(fields)


def _scalar_kinds(annotation: Any) -> Iterable[Any]:
    """Yield the types of a field's value except None; for a Literal, those of its values."""
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(value) for value in get_args(annotation)]
    if origin in (Union, types.UnionType):
        members = (kind for kind in get_args(annotation) if kind is not type(None))
        return [kind for member in members for kind in _scalar_kinds(member)]
    return [annotation]


def sort_key(
    model: type[BaseModel], field: str, get: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """Return the function that maps a record to its sort key; ``get`` reads the field of a record.

    Raises:
        InvalidArgumentError: The model cannot be sorted by this field; the message names the
            fields that it can be sorted by.
    """
    fields = sortable_fields(model)
    if field not in fields:
        allowed = ", ".join(fields)
        raise InvalidArgumentError(f"cannot sort by {field!r}; sort by one of: {allowed}")
    missing = fields[field]
    get = get or attrgetter(field)

    def key(record: Any) -> Any:
        value = get(record)
        return missing if value is None else value

    return key
