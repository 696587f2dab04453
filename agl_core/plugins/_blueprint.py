"""Describes a component whose options are checked but that is not built yet."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from agl_core.errors import AglError, ConfigError, InvalidArgumentError, UnknownOptionError
from agl_core.plugins._config import check_config, config_model_of, validate_config
from agl_core.plugins._imports import broken, import_named, import_object
from agl_core.plugins._suggest import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

    from agl_core.plugins._records import PluginRecord


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The factory and the options of one component.

    Attributes:
        factory: Builds the component. A dotted path is imported by :meth:`build`.
        path: Path of the component in a configuration, for messages.
        options: The options of the user.
        inject: Values of the running program; see :mod:`agl_core.plugins._build`.
        model: Config model of the options; None passes them on unchecked.
        record: The plugin that provides the component, if it was requested by name.
    """

    factory: Callable[..., object] | str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inject: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: type[BaseModel] | None = None
    record: PluginRecord | None = None

    @property
    def source(self) -> str:
        """The distribution or class that provides the component, for messages."""
        return self.record.origin if self.record else _name_of(self.factory)

    def check(self) -> None:
        """Check the options without importing the factory.

        Raises:
            ConfigError: An option is unknown, missing or of the wrong type.
        """
        if self.model is None:
            if self.record is not None and self.options:
                raise UnknownOptionError(
                    f"{self.record.name!r} takes no options",
                    path=f"{self.path}.{next(iter(self.options))}",
                )
            return
        # The factory is not imported yet, so any injected value may still satisfy a field.
        check_config(self.model, self.options, path=self.path, absent=self.inject)

    def build(self) -> object:
        """Build the component.

        Raises:
            ConfigError: The factory rejects its arguments.
            PluginBrokenError: A plugin's factory does not import, or raised another error.
        """
        factory = self._import()
        positional, arguments = self._arguments(factory)
        self._check_signature(factory, positional, arguments)
        try:
            return factory(*positional, **arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also from a factory that calls sys.exit()
            if isinstance(error, AglError) and not isinstance(error, InvalidArgumentError):
                raise
            if isinstance(error, ValueError):
                message = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(message, path=self.path) from error
            if self.record is None:
                error.add_note(f"while building {self.path} with {_name_of(factory)}")
                raise
            raise broken(self.record, error, doing="start") from error

    def _import(self) -> Callable[..., object]:
        if not isinstance(self.factory, str):
            return self.factory
        if self.record is None:
            return import_object(self.factory)
        return import_named(self.record, self.factory)

    def _arguments(self, factory: Callable[..., object]) -> tuple[list[object], dict[str, Any]]:
        """Return the positional arguments (at most the config model) and the keyword arguments."""
        wanted = _wanted(factory) if self.model is None else _injects(self.model, factory)
        supplied = {name: value for name, value in self.inject.items() if name in wanted}
        if self.model is None:
            return [], supplied | dict(self.options)
        fields = self.model.model_fields
        in_config = {name: value for name, value in supplied.items() if name in fields}
        config = validate_config(self.model, in_config | dict(self.options), path=self.path)
        taken = config_model_of(factory)
        if taken is not None and isinstance(config, taken):
            return [config], {}
        return [], supplied | {name: getattr(config, name) for name in fields}

    def _check_signature(
        self, factory: Callable[..., object], positional: list[object], arguments: dict[str, Any]
    ) -> None:
        if positional:
            return  # the constructor takes the model that was checked
        try:
            signature = inspect.signature(factory)
        except (TypeError, ValueError):
            return  # a class written in C has no signature; calling it raises its own error
        try:
            signature.bind(**arguments)
        except TypeError as error:
            surplus = next((name for name in arguments if name not in signature.parameters), "")
            hint = did_you_mean(surplus, signature.parameters)
            raise UnknownOptionError(
                f"{_name_of(factory)} does not take these options: {error}{hint}",
                path=f"{self.path}.{surplus}" if surplus else self.path,
            ) from error


def _injects(*declaring: object) -> set[str]:
    return {name for item in declaring for name in cast("set[str]", getattr(item, "injects", ()))}


def _wanted(factory: Callable[..., object]) -> set[str]:
    """Return the injected values that a factory without a config model wants.

    A class that declares none itself wants what its constructor names, as in version 0.3.
    """
    if not isinstance(factory, type) or "injects" in vars(factory):
        return _injects(factory)
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # a class written in C
        return set()
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {*parameters, *(_injects(factory) if passes_on else ())}


def _name_of(factory: object) -> str:
    if isinstance(factory, str):
        return factory
    module = getattr(factory, "__module__", "")
    name = getattr(factory, "__qualname__", None) or type(factory).__qualname__
    return f"{module}.{name}" if module else name
