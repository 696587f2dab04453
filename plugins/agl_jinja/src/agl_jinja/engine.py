"""The Jinja engine: a sandbox that bounds memory and time, too.

A template may come from an algorithm, a model that edits prompts, or over HTTP, and it is filled in
processes that hold secrets. Jinja's own sandbox bounds neither memory nor time
(jinja.palletsprojects.com/en/stable/sandbox, "Security Considerations").
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any, Final, cast

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from typing_extensions import override

from agl_core.errors import InvalidArgumentError

_MAX_OUTPUT: Final = 16 * 2**20
"""Characters of a filled template."""
_MAX_STEPS: Final = 300_000
"""Iterations, calls and operations of one template, and 64 characters of their results."""
_MAX_SECONDS: Final = 2.0
"""A step may take long: a search in a long text."""
_CALL_STEPS: Final = 10
"""A call of a macro takes ten times as long as an iteration."""
_MAX_ARGUMENT: Final = 10_000
"""Largest width, indent or the like."""
_SIZED: Final = frozenset(
    {
        *("batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice"),
        *("to_bytes", "tojson", "zfill"),
    }
)
"""Filters and methods whose results grow with a number that they get."""
_MAX_TAGS: Final = 2_000
"""Each is compiled to Python code, which takes time before any step is counted."""
_MAX_TEMPLATE: Final = 2**20
"""Characters. A prompt has some thousands."""
_WIDE: Final = re.compile(
    r"%(\((?:[^()]|\([^()]*\))*\))?[^A-Za-z%]*(\d{5}|\*)"  # %99999d, %*d, also after %(a)
    r"|%\([^()]*\([^()]*\("  # a name with brackets in brackets
    r"|\{[^{}]*:[^{}]*(\d{5}|\{)"  # {:99999}, {:{}}
)
"""A placeholder with a width of five digits, or with one that is an argument."""


def fill_jinja(template: str, values: Mapping[str, Any]) -> str:
    """Fill a Jinja template in a sandbox.

    Raises:
        jinja2.UndefinedError: A name has no value.
        jinja2.exceptions.SecurityError: The template reaches into Python, or does too much.
        InvalidArgumentError: The template is malformed.
    """
    if len(template) > _MAX_TEMPLATE or len(re.findall(r"\{[{%]", template)) > _MAX_TAGS:
        raise SecurityError(f"the template is larger than 1 MiB or has more than {_MAX_TAGS} tags")
    token = _steps.set(_Work(time.monotonic() + _MAX_SECONDS))
    try:
        return _compiled(template).render(values)
    except TemplateSyntaxError as error:
        problem = f"{error.message} (line {error.lineno})"
        raise InvalidArgumentError(f"the template is not valid: {problem}") from None
    except (MemoryError, RecursionError, SyntaxError) as error:
        raise InvalidArgumentError("the template is nested too deeply") from error
    finally:
        _steps.reset(token)


@dataclass(slots=True)
class _Work:
    deadline: float
    steps: int = 0


_steps: ContextVar[_Work] = ContextVar("agl_template_steps")
"""The work of the template that is being filled."""


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


@cache
def _environment() -> SandboxedEnvironment:
    """Return a sandbox that counts the work of each template."""

    class Generator(CodeGenerator):
        """Hands each iteration and each value that a template makes to the environment."""

        @override
        def visit_For(self, node: nodes.For, frame: Any) -> None:
            if node.recursive:
                raise SecurityError("a template may not use recursive loops")
            node.iter = _call("counted", [node.iter])
            super().visit_For(node, frame)

        @override
        def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:
            node.expr = _call("charge", [node.expr])
            for operand in node.ops:
                operand.expr = _call("charge", [operand.expr])
            super().visit_Compare(node, frame)

        @override
        def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
            self.visit_Call(_call("joined", node.nodes), frame)

        @override
        def visit_List(self, node: nodes.List, frame: Any) -> None:
            self.visit_Call(_call("listed", node.items), frame)

        @override
        def visit_Tuple(self, node: nodes.Tuple, frame: Any) -> None:
            if node.ctx == "load":
                self.visit_Call(_call("tupled", node.items), frame)
            else:  # names that are assigned to
                super().visit_Tuple(node, frame)

        @override
        def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
            items = [part for pair in node.items for part in (pair.key, pair.value)]
            self.visit_Call(_call("mapped", items), frame)

    def _call(name: str, values: list[Any]) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), values, [], None, None)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"%", "*", "**", "+"})
        code_generator_class = Generator

        def charge(self, value: Any = None, steps: int = 0) -> Any:
            work = _steps.get()
            work.steps += steps + _size(value)
            if work.steps > _MAX_STEPS:
                raise SecurityError("the template does more work than a prompt needs")
            if time.monotonic() > work.deadline:
                raise SecurityError(f"the template takes more than {_MAX_SECONDS:g} seconds")
            return value

        def counted(self, values: Iterable[Any]) -> Iterator[Any]:
            for value in values:
                self.charge()
                yield value

        def joined(self, *values: Any) -> str:
            return "".join(map(str, values))

        def listed(self, *values: Any) -> list[Any]:
            return list(values)

        def tupled(self, *values: Any) -> tuple[Any, ...]:
            return values

        def mapped(self, *items: Any) -> dict[Any, Any]:
            return dict(zip(items[::2], items[1::2], strict=True))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "%" and isinstance(left, str):
                _check_method(left, "format", ())
            elif operator != "+" and not (
                _is_small(left) and _is_small(right) and (operator != "**" or abs(right) < 100)
            ):
                raise SecurityError(f"a template may use {operator} only with small numbers")
            return self.charge(super().call_binop(context, operator, left, right))

        def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            method = getattr(obj, "__wrapped__", obj)  # Jinja replaces str.format
            owner: Any = getattr(method, "__self__", None)
            if isinstance(owner, (str, bytes, bytearray, int)):
                _check_method(owner, method.__name__, (*args, *kwargs.values()))
            return self.charge(super().call(context, obj, *args, **kwargs), _CALL_STEPS)

        def concat(self, pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
            found: list[str] = []
            size = 0
            for piece in pieces:
                found.append(piece)
                size += len(piece)
                if size > _MAX_OUTPUT:
                    raise SecurityError("the filled template would be larger than 16 MiB")
            return "".join(found)

    def bounded(name: str, function: Any) -> Any:
        first = int(hasattr(function, "jinja_pass_arg"))  # Jinja's environment or context

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            _check_method(args[first], name, (*args[first + 1 :], *kwargs.values()))
            return environment.charge(function(*args, **kwargs))

        return wrapper

    environment: Any = Environment(undefined=StrictUndefined)
    del environment.globals["lipsum"]
    environment.filters = {
        name: bounded(name, function) for name, function in environment.filters.items()
    }
    return environment


def _check_method(value: Any, name: str, arguments: Sequence[Any]) -> None:
    """Refuse a filter or a method of a value whose result may be much larger than what it gets."""
    number = max((abs(it) for it in arguments if isinstance(it, int)), default=0)
    longest = max((len(it) for it in arguments if isinstance(it, (str, bytes))), default=0)
    size = _items(value)
    if name == "join" and isinstance(value, (str, bytes)):
        # The method; the filter has them the other way round.
        size = max(size, *map(_items, arguments)) if arguments else size
        longest = max(longest, len(value))
    if (
        (name in _SIZED and number > _MAX_ARGUMENT)
        or name in ("encode", "translate")
        or (name in ("format", "format_map") and _WIDE.search(str(value)))
        or (name in ("expandtabs", "indent", "tojson") and size * (number or 8) > _MAX_OUTPUT)
        or (name in ("indent", "join", "replace") and size * longest > _MAX_OUTPUT)
    ):
        raise SecurityError(f"a template may not use {name} with such large values")


def _is_small(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 2**63


def _items(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, bytearray)) else _size(value)


def _size(value: Any) -> int:
    """Return the number of values in a value, or more than the limit; shared ones count again."""
    count, stack = 1, [value]
    while stack and count <= _MAX_STEPS:
        item = stack.pop()
        if isinstance(item, (str, bytes, bytearray)):
            count += len(item) // 64
        elif isinstance(item, (dict, list, tuple)):
            items = cast("dict[Any, Any] | list[Any] | tuple[Any, ...]", item)
            count += len(items)
            stack.extend(items.values() if isinstance(items, dict) else items)
    return count
