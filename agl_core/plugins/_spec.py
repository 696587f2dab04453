"""Specs: the frozen dataclasses that hook modules return.

A spec names things by strings, so the registry can describe a plugin without importing its
implementation. The spec's class imports what it names and checks it (:meth:`Spec.resolve`).

The specs of the extension kinds are in :mod:`agl_core.plugins._extensions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import pluggy

from agl_core.plugins._imports import broken, import_named, import_object, unusable, wrong_type
from agl_core.plugins._suggest import did_you_mean

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord

ENTRY_POINT_GROUP: Final = "agl"

hookspec = pluggy.HookspecMarker("agl")
"""Marks a function as the specification of the hook of its name."""
hookimpl = pluggy.HookimplMarker("agl")
"""Marks a function of a hook module as the implementation of the hook of its name."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The fields that specs of every kind have; base of all specs.

    Attributes:
        name: The entry point's name after the dot: the name of a component in configurations, the
            word after ``agl``, the prefix of a model, the ``resource_type``.
        summary: One line for ``agl plugins list`` and ``agl --help``.
        api: The plugin API version that the plugin was written for, written here as a number by
            its author. None counts as 1, and ``agl plugins doctor`` asks for the number.
    """

    name: str
    summary: str = field(default="", kw_only=True)
    api: int | None = field(default=None, kw_only=True)

    def remarks(self, record: PluginRecord) -> Iterable[str]:
        """Return what the author should mend, although the plugin can be used.

        ``agl plugins doctor`` shows it. The default has none.

        Args:
            record: The plugin, for messages.
        """
        del record
        return ()

    def resolve(self, record: PluginRecord) -> Any:
        """Import what the spec names and check it; called when the plugin is used.

        A spec that is complete in itself returns itself.

        Args:
            record: The plugin, for messages.

        Raises:
            PluginBrokenError: Something does not import, or is not what it has to be.
        """
        del record
        return self


@dataclass(frozen=True, slots=True)
class ComponentSpec(Spec):
    """A component that can be built by name.

    Attributes:
        kind: The contract that the component implements.
        factory: ``"package.module:Class"``, called with the config model if its constructor takes
            one (:func:`~agl_core.plugins.configured_by`), else with the model's fields by name.
        config: ``"package.module:Model"``, a pydantic model with ``extra="forbid"``; empty if the
            component takes no options.
        capabilities: Optional abilities of the component, by their names in the conformance suites.
    """

    kind: str
    factory: str
    config: str = ""
    capabilities: frozenset[str] = field(default_factory=frozenset[str])

    def remarks(self, record: PluginRecord) -> Iterator[str]:
        """Yield the capabilities that the kind does not know."""
        from agl_core.plugins._registry import get_registry

        known = get_registry().kind(self.kind).capabilities
        if known is None:
            return
        listed = ", ".join(sorted(known))
        for name in sorted(map(str, self.capabilities - known)):
            guess = did_you_mean(name, known)
            yield f"a {self.kind} has no capability {name!r}{guess} (known: {listed})"

    def resolve(self, record: PluginRecord) -> Any:
        """Import the factory and the config model, check both, and return the factory."""
        from pydantic import BaseModel

        from agl_core.plugins._build import contract_of

        if self.config:
            model = import_named(record, self.config)
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                raise unusable(record, f"{self.config} is not a pydantic model")
            if model.model_config.get("extra") != "forbid":
                raise unusable(
                    record,
                    f'{self.config} lets unknown options pass: set extra="forbid" in its '
                    "model_config",
                )
        factory = import_named(record, self.factory)
        if not callable(factory):
            raise wrong_type(record, self.factory, factory, "a class")
        contract = contract_of(self.kind)
        if isinstance(factory, type) and contract and not issubclass(factory, contract):
            raise unusable(record, f"{self.factory} is not a {contract.__name__}")
        return factory


@dataclass(frozen=True, slots=True)
class ModuleSpec(Spec):
    """A module of ``@hookimpl`` functions; base of the specs of kinds whose plugins are such.

    Experimental: a release may change it.

    Attributes:
        module: ``"package.module"`` with the implementations; it holds no other hooks.
    """

    hooks: ClassVar[str]
    """``"package.module:Class"`` with the hookspecs of the kind; each subclass sets it."""

    module: str

    def remarks(self, record: PluginRecord) -> Iterator[str]:
        """Yield the functions that look like implementations and are none."""
        manager = self.resolve(record)
        (module,) = manager.get_plugins()
        if not manager.get_hookcallers(module):
            yield f"{self.module} implements no hook"
        for name in dir(import_object(self.hooks)):
            function = getattr(module, name, None)
            if not callable(function) or name.startswith("_"):
                continue
            if manager.parse_hookimpl_opts(module, name) is None:
                yield f"{self.module}.{name} has the name of a hook but no @hookimpl"

    def resolve(self, record: PluginRecord) -> pluggy.PluginManager:
        """Import the module; return a manager of its hooks alone, checked against the hookspecs."""
        from importlib import import_module

        from agl_core.plugins._loading import hook_manager

        try:
            return hook_manager(import_object(self.hooks), import_module(self.module), record.name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin that calls sys.exit() must not end the program
            raise broken(record, error) from error


@dataclass(frozen=True, slots=True)
class KindSpec(Spec):
    """A kind of plugins.

    Experimental: a release may change it.

    The kind's hook is ``agl_<name>``, with underscores for hyphens. It takes no arguments and
    returns one spec, or a sequence of specs if the distribution provides several plugins.

    Attributes:
        spec: ``"package.module:Class"``, the subclass of :class:`Spec` that the kind's hook
            returns. It imports what its plugins name and checks it.
        contract: ``"package.module:Class"`` that a component of the kind is an instance of; empty
            for a kind whose plugins are not components.
        capabilities: Names of the optional abilities of a component; None if any may be claimed.
        called: When the kind's hook is called, and by whom.
        experimental: Whether any release may change the kind.
    """

    spec: str = "agl_core.plugins:ComponentSpec"
    contract: str = ""
    capabilities: frozenset[str] | None = None
    called: str = "Called when a component of this kind is requested by name."
    experimental: bool = False

    def resolve(self, record: PluginRecord) -> type[Spec]:
        """Import the class of the kind's specs."""
        found: object = import_named(record, self.spec)
        if not (isinstance(found, type) and issubclass(found, Spec)):
            raise wrong_type(record, self.spec, cast("object", found), "a subclass of Spec")
        if issubclass(found, ComponentSpec) != bool(self.contract):
            raise unusable(record, "a kind has a contract if its specs are ComponentSpecs")
        return found

    def hookspecs(self) -> type:
        """Return a class with the hookspec of the kind's hook, for pluggy's ``add_hookspecs``."""

        def describe() -> Any: ...

        name = hook_of(self.name)
        describe.__name__ = describe.__qualname__ = name
        describe.__doc__ = f"Describe a plugin of the kind {self.name}: {self.summary}."
        return type("KindHook", (), {name: staticmethod(hookspec(firstresult=True)(describe))})


def hook_of(kind: str) -> str:
    """Return the name of the hook by which plugins of a kind describe themselves."""
    return f"agl_{kind.replace('-', '_')}"
