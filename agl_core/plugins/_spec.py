"""Specs: the values with which plugins describe themselves.

A hook returns a spec. Specs hold strings instead of objects, so that listing plugins imports only
their hook modules::

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
from typing import Final, Literal, get_args

import pluggy

ENTRY_POINT_GROUP: Final = "agl"
PLUGIN_API_VERSION: Final = 1
"""Increased by changes that break plugins for older cores; see :class:`Spec`."""

ComponentKind = Literal[
    "store", "tracer", "adapter", "algorithm", "proxy", "execution", "llm_server", "metrics"
]
ExtensionKind = Literal[
    "command", "app", "hook", "dialect", "provider", "check", "resource", "environment"
]
Kind = Literal[ComponentKind, ExtensionKind]
COMPONENT_KINDS: Final[tuple[str, ...]] = get_args(ComponentKind)
KINDS: Final[tuple[str, ...]] = (*COMPONENT_KINDS, *get_args(ExtensionKind))

hookspec = pluggy.HookspecMarker("agl")
hookimpl = pluggy.HookimplMarker("agl")
"""Marks a function of a hook module as the implementation of the hook of its name."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The fields that specs of every kind have; base of the specs below.

    Attributes:
        name: The entry point's name after the dot: the name of a component in configurations, the
            word after ``agl``, the prefix of a model, the ``resource_type``.
        summary: One line for ``agl plugins list`` and ``agl --help``.
        api: The plugin API version that the plugin was written for.
    """

    name: str
    summary: str = field(default="", kw_only=True)
    api: int = field(default=PLUGIN_API_VERSION, kw_only=True)


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

    kind: ComponentKind
    factory: str
    config: str = ""
    capabilities: frozenset[str] = field(default_factory=frozenset[str])


@dataclass(frozen=True, slots=True)
class CommandSpec(Spec):
    """A subcommand of ``agl``.

    Attributes:
        target: ``"package.module:command"``, a :class:`click.Command`; imported to run the command.
    """

    target: str


@dataclass(frozen=True, slots=True)
class AppSpec(Spec):
    """An ASGI application mounted on the store server.

    Attributes:
        path: Path of the mount, e.g. ``/dashboard`` (absolute, no trailing slash; ``/`` serves
            every GET that no route of the API matches).
        factory: ``"package.module:function"``, called with the server's store; returns the app.
        scope: Token scope that a caller needs: ``read``, ``admin``, or ``public`` for no token.
    """

    path: str
    factory: str
    scope: Literal["public", "read", "admin"] = "read"


@dataclass(frozen=True, slots=True)
class HookSpec(Spec):
    """A listener to life-cycle events: a module of ``@hookimpl`` functions.

    Attributes:
        module: ``"package.module"`` whose hook implementations are registered when a run starts.
    """

    module: str


@dataclass(frozen=True, slots=True)
class DialectSpec(Spec):
    """A span vocabulary: the attributes in which a tracer or proxy writes model calls and agents.

    Attributes:
        dialect: ``"package.module:NAME"``, a :class:`agl_core.adapter.Dialect` or a sequence of
            them; imported when an adapter first reads a span.
    """

    dialect: str


@dataclass(frozen=True, slots=True)
class ProviderSpec(Spec):
    """A kind of LLM backend that a proxy can call: ``name/model`` in a model list.

    Attributes:
        protocols: Protocols of the backend (:data:`agl_core.genai.Protocol`), best first. A
            request in another protocol is translated to the first of them that can express it.
        api_base: Base URL if a model list does not give one; empty if there is no default.
        auth: How the key is sent: ``"bearer"`` is ``Authorization: Bearer KEY``, ``"x-api-key"`` is
            Anthropic's header.
        headers: Headers sent with every call, unless the agent's request has them.
        token_ids: Whether the backend returns token ids on ``return_token_ids``.
        logprobs: Whether the proxy may request log-probabilities in every call.
        stream_usage: Whether the backend supports ``stream_options.include_usage``.
    """

    protocols: tuple[str, ...]
    api_base: str = ""
    auth: Literal["bearer", "x-api-key"] = "bearer"
    headers: tuple[tuple[str, str], ...] = ()
    token_ids: bool = False
    logprobs: bool = False
    stream_usage: bool = False


@dataclass(frozen=True, slots=True)
class CheckSpec(Spec):
    """A check of ``agl doctor``.

    Attributes:
        check: ``"package.module:function"``, called without arguments; returns an iterable of
            :class:`agl_core.doctor.Finding` and repairs nothing.
        reads_store: Whether the check reads a store. Then ``check`` is an async function; ``agl
            doctor --store`` calls it as ``check(store, silent_seconds=…, max_traces=…)``, with the
            options of the command.
    """

    check: str
    reads_store: bool = False


@dataclass(frozen=True, slots=True)
class ResourceSpec(Spec):
    """A resource type that stores and agents can decode.

    Attributes:
        resource: ``"package.module:Class"``, a subclass of :class:`agl_core.types.Resource`;
            imported when a process first decodes a resource of this type.
    """

    resource: str


@dataclass(frozen=True, slots=True)
class EnvironmentSpec(Spec):
    """The environments of a library: agents with their tasks, named ``plugin:environment``.

    Attributes:
        load: ``"package.module:function"``, called as ``load(name, options, path=…)`` with the name
            of an environment, a dict of its options, and the key of the reference in a
            configuration; returns an :class:`agl_core.agent.Environment`, and raises
            :class:`~agl_core.errors.ConfigError` for a wrong name or option.
    """

    load: str
