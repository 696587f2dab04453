"""Specs of the extension kinds: what each names, and how that is loaded and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from agl_core.plugins._imports import import_named, import_object, unusable, wrong_type
from agl_core.plugins._spec import ModuleSpec, Spec

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord
    from agl_core.types import Resource


@dataclass(frozen=True, slots=True)
class CommandSpec(Spec):
    """A subcommand of ``agl``.

    Attributes:
        target: ``"package.module:command"``, a :class:`click.Command`; imported to run the command.
    """

    target: str

    def resolve(self, record: PluginRecord) -> Any:
        """Import the click command."""
        import click

        found = import_named(record, self.target)
        if not isinstance(found, click.Command):
            raise wrong_type(record, self.target, found, "a click command")
        return found


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

    def resolve(self, record: PluginRecord) -> Callable[..., Any]:
        """Import the factory."""
        return _function(record, self.factory)


@dataclass(frozen=True, slots=True)
class HookSpec(ModuleSpec):
    """A listener to life-cycle events: a module of ``@hookimpl`` functions.

    Attributes:
        module: ``"package.module"`` whose hook implementations are registered when a run starts.
    """

    hooks: ClassVar[str] = "agl_core.plugins:LifecycleEvents"


@dataclass(frozen=True, slots=True)
class ReplayerSpec(ModuleSpec):
    """A replayer: repeats recorded rollouts, and keeps suites of them.

    Experimental: a release may change it.

    Attributes:
        module: ``"package.module"`` with implementations of :class:`agl_core.runner.ReplayHooks`;
            imported when a rollout or a suite is replayed.
    """

    hooks: ClassVar[str] = "agl_core.runner:ReplayHooks"


@dataclass(frozen=True, slots=True)
class DialectSpec(Spec):
    """A span vocabulary: the attributes in which a tracer or proxy writes model calls and agents.

    Attributes:
        dialect: ``"package.module:NAME"``, a :class:`agl_core.adapter.Dialect` or a sequence of
            them; imported when an adapter first reads a span.
    """

    dialect: str

    def resolve(self, record: PluginRecord) -> Sequence[Any]:
        """Import the dialects."""
        found = import_named(record, self.dialect)
        dialects = cast("Sequence[Any]", found if isinstance(found, (list, tuple)) else (found,))
        expected = import_object("agl_core.adapter:Dialect")
        for dialect in dialects:
            if not isinstance(dialect, expected):
                raise wrong_type(record, self.dialect, dialect, "a Dialect")
        return dialects


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

    def resolve(self, record: PluginRecord) -> Callable[..., Any]:
        """Import the function."""
        return _function(record, self.check)


@dataclass(frozen=True, slots=True)
class ResourceSpec(Spec):
    """A resource type that stores and agents can decode.

    Attributes:
        resource: ``"package.module:Class"``, a subclass of :class:`agl_core.types.Resource`;
            imported when a process first decodes a resource of this type.
    """

    resource: str

    def resolve(self, record: PluginRecord) -> type[Resource]:
        """Import the class."""
        from agl_core.types import Resource

        found = import_named(record, self.resource)
        if not inspect.isclass(found) or not issubclass(found, Resource):
            raise wrong_type(record, self.resource, cast("object", found), "a subclass of Resource")
        default = found.model_fields["resource_type"].default
        if default != self.name:
            problem = f"{self.resource} has the resource_type {default!r}, not {self.name!r}"
            raise unusable(record, problem)
        return found


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

    def resolve(self, record: PluginRecord) -> Callable[..., Any]:
        """Import the function."""
        return _function(record, self.load)


def _function(record: PluginRecord, dotted: str) -> Callable[..., Any]:
    found = import_named(record, dotted)
    if not callable(found):
        raise wrong_type(record, dotted, found, "a function")
    return found
