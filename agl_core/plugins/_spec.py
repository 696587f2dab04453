"""What a plugin says about itself.

A plugin's hook module returns one of these from its hook. They hold strings, not objects, so that
looking at a plugin imports nothing but its hook module::

    from agl_core.plugins import ComponentSpec, hookimpl

    @hookimpl
    def agl_store() -> ComponentSpec:
        return ComponentSpec(
            kind="store",
            name="sqlite",
            factory="agl_store_sqlite.store:SqliteStore",
            config="agl_store_sqlite.config:SqliteConfig",
            summary="One file, durable, for one machine",
        )
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

import pluggy

__all__ = [
    "COMPONENT_KINDS",
    "ENTRY_POINT_GROUP",
    "KINDS",
    "PLUGIN_API_VERSION",
    "AppSpec",
    "CommandSpec",
    "ComponentKind",
    "ComponentSpec",
    "HookSpec",
    "Kind",
    "Spec",
    "hookimpl",
    "hookspec",
]

ENTRY_POINT_GROUP: Final = "agl"
PLUGIN_API_VERSION: Final = 1
"""Raised when a plugin written for the older core would break; see :class:`ComponentSpec`."""

ComponentKind = Literal[
    "store", "tracer", "adapter", "algorithm", "proxy", "execution", "llm_server"
]
Kind = Literal[ComponentKind, "command", "app", "hook"]
COMPONENT_KINDS: Final[tuple[str, ...]] = get_args(ComponentKind)
KINDS: Final[tuple[str, ...]] = (*COMPONENT_KINDS, "command", "app", "hook")

hookspec = pluggy.HookspecMarker("agl")
hookimpl = pluggy.HookimplMarker("agl")
"""Marks a function of a hook module as the implementation of the hook of its name."""


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component that can be built by name.

    Attributes:
        kind: Which contract the component fulfils.
        name: The name users write; equal to the entry point's after the dot.
        factory: ``"package.module:Class"``, called with the config model if its constructor takes
            one (:func:`~agl_core.plugins.configured_by`), else with the model's fields by name.
        config: ``"package.module:Model"``, a pydantic model with ``extra="forbid"``; empty if the
            component takes no options.
        capabilities: What the component can do beyond its contract, as the conformance suites name
            it.
        summary: One line for ``agl plugins list``.
        api: The plugin API version the component was written for.
    """

    kind: ComponentKind
    name: str
    factory: str
    config: str = ""
    capabilities: frozenset[str] = field(default_factory=frozenset[str])
    summary: str = ""
    api: int = PLUGIN_API_VERSION


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A subcommand of ``agl``.

    Attributes:
        name: The word after ``agl``.
        target: ``"package.module:command"``, a :class:`click.Command`; imported when it is run.
        summary: One line for ``agl --help``.
        api: The plugin API version the command was written for.
    """

    name: str
    target: str
    summary: str = ""
    api: int = PLUGIN_API_VERSION


@dataclass(frozen=True, slots=True)
class AppSpec:
    """An ASGI application mounted on the store server.

    Attributes:
        name: Name of the app, as in its entry point.
        path: Where it is mounted, e.g. ``/dashboard`` (absolute, no trailing slash; ``/`` takes
            every GET that no route of the API matches).
        factory: ``"package.module:function"``, called with the server's store; returns the app.
        summary: One line for ``agl plugins list``.
        scope: Token scope that a caller needs: ``read``, ``admin``, or ``public`` for none.
        api: The plugin API version the app was written for.
    """

    name: str
    path: str
    factory: str
    summary: str = ""
    scope: Literal["public", "read", "admin"] = "read"
    api: int = PLUGIN_API_VERSION


@dataclass(frozen=True, slots=True)
class HookSpec:
    """A listener to life-cycle events: a module of ``@hookimpl`` functions.

    Attributes:
        name: Name of the listener, as in its entry point.
        module: ``"package.module"`` whose hook implementations are registered when a run starts.
        summary: One line for ``agl plugins list``.
        api: The plugin API version the listener was written for.
    """

    name: str
    module: str
    summary: str = ""
    api: int = PLUGIN_API_VERSION


Spec: TypeAlias = ComponentSpec | CommandSpec | AppSpec | HookSpec
"""What a hook of a kind returns."""
