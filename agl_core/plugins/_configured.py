"""Lets the constructor of a component take its config model.

An option is defined once, as a field of the model: its name, type, default, bounds and meaning ::

    class SqliteConfig(ComponentConfig):
        path: str = Field(default="agl.db", kw_only=False)
        '''The database file; it is created.'''
        busy_seconds: float = Field(default=10.0, gt=0)
        '''Longest wait for another process that holds the file, in seconds.'''

    class SqliteStore(LightningStore):
        @configured_by(SqliteConfig)
        def __init__(self, config: SqliteConfig) -> None:
            self._config = config

The store can then be built from a model or from options, and type checkers know both forms ::

    SqliteStore(SqliteConfig(path="runs.db"))
    SqliteStore("runs.db", busy_seconds=2)

The registry passes the model that it has checked. ``agl plugins show``, ``agl train --check`` and
the documentation read the same model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast, overload

from pydantic import BaseModel, ConfigDict

from agl_core.plugins._config import MODEL_ATTRIBUTE, validate_config

P = ParamSpec("P")
C = TypeVar("C", bound=BaseModel)
C_contra = TypeVar("C_contra", bound=BaseModel, contravariant=True)

_EITHER: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD


class ComponentConfig(BaseModel):
    """Base of config models: rejects unknown options, and is immutable.

    The docstring of a field is its description (:func:`option_descriptions`).
    ``Field(kw_only=False)`` also lets the constructor take the field by position. A field that
    holds a live object (a client, a store) has the object's class as its type and
    ``Field(exclude=True)``; only Python code can set it.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
    )


# pyright asks for a covariant variable here, although it is used only as a parameter.
class _BoundConstructor(Protocol[P, C_contra]):  # pyright: ignore[reportInvalidTypeVarUse]
    @overload
    def __call__(self, config: C_contra, /) -> None: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...


class _Constructor(Protocol[P, C_contra]):
    """Type of an ``__init__``. It is a protocol, so that subclasses may override ``__init__``."""

    @overload
    def __get__(self, obj: None, owner: type, /) -> Callable[..., Any]: ...
    @overload
    def __get__(
        self, obj: object, owner: type | None = None, /
    ) -> _BoundConstructor[P, C_contra]: ...


def configured_by(
    model: Callable[P, C],
) -> Callable[[Callable[[Any, C], None]], _Constructor[P, C]]:
    """Let an ``__init__`` that takes a config model also take the model's fields as arguments.

    Wrong options raise :class:`~agl_core.errors.ConfigError` (a ``ValueError``) with the path
    ``Class.option``; too many positional arguments raise ``TypeError``.

    Args:
        model: The config model.
    """
    checked = cast("type[C]", model)

    def decorate(init: Callable[[Any, C], None]) -> _Constructor[P, C]:
        fields = checked.model_fields
        positional = [name for name, field in fields.items() if field.kw_only is False]

        @functools.wraps(init)
        def wrapper(self: object, *args: Any, **options: Any) -> None:
            if len(args) == 1 and not options and isinstance(args[0], checked):
                init(self, args[0])
                return
            name = type(self).__qualname__
            if len(args) > len(positional) or any(isinstance(arg, checked) for arg in args):
                raise TypeError(
                    f"{name} takes one {checked.__name__} alone, or options, of which "
                    f"{len(positional)} may be positional"
                )
            by_position = dict(zip(positional, args, strict=False))
            if both := by_position.keys() & options.keys():
                raise TypeError(f"{name} got two values for {', '.join(sorted(both))}")
            init(self, validate_config(checked, by_position | options, path=name))

        setattr(wrapper, MODEL_ATTRIBUTE, checked)
        signature = _signature(checked, positional)
        setattr(wrapper, "__signature__", signature)  # noqa: B010 - help() and editors read it
        wrapper.__annotations__ = {
            p.name: p.annotation for p in signature.parameters.values() if p.name != "self"
        }
        return cast("_Constructor[P, C]", wrapper)

    return decorate


def _signature(model: type[BaseModel], positional: list[str]) -> inspect.Signature:
    by_name = model.__signature__.parameters
    first = [by_name[name].replace(kind=_EITHER) for name in positional]
    rest = [parameter for name, parameter in by_name.items() if name not in positional]
    itself = inspect.Parameter("self", _EITHER)
    return inspect.Signature([itself, *first, *rest], return_annotation=None)
