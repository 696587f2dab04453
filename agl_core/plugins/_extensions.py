"""Specs of the extension kinds: what each names, and how that is loaded and checked."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast, get_args

from agl_core.plugins._imports import (
    broken,
    import_named,
    import_object,
    unusable,
    wrong_type,
)
from agl_core.plugins._spec import ModuleSpec, Spec
from agl_core.plugins._suggest import did_you_mean

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord
    from agl_core.types import Resource

_INTERCEPTOR: Final = "agl_core.store._interceptor"
_Scope = Literal["public", "read", "admin"]
_Auth = Literal["bearer", "x-api-key"]
_MOUNT: Final = re.compile(r"/|(?:/[^/\s?#]+)+")
_URL: Final = re.compile(r"https?://[^/\s]+")
# RFC 9110, 5.1 and 5.5: a token, and visible characters with blanks between them.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?")


@dataclass(frozen=True, slots=True)
class CommandSpec(Spec):
    """A subcommand of ``agl``.

    Attributes:
        target: ``"package.module:command"``, a :class:`click.Command`; imported to run the command.
    """

    target: str

    def resolve(self, record: PluginRecord) -> Any:
        """Import the click command."""
        found = import_named(record, self.target)
        # The core does not require click; a click command has imported it.
        if not isinstance(found, getattr(sys.modules.get("click"), "Command", ())):
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
    scope: _Scope = "read"

    def resolve(self, record: PluginRecord) -> Callable[..., Any]:
        """Import the factory, and check path and scope."""
        if not _MOUNT.fullmatch(str(self.path)):
            raise unusable(record, f"its path {self.path!r} is not like '/name' or '/'")
        if self.scope not in (scopes := get_args(_Scope)):
            raise unusable(record, f"its scope {self.scope!r} is not one of {', '.join(scopes)}")
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
class InterceptorSpec(Spec):
    """Code around the calls of the stores of runs and of store servers.

    Attributes:
        interceptor: ``"package.module:Class"``, a subclass of :class:`agl_core.store.Interceptor`,
            or a function; called once per process without arguments, returns an interceptor.
    """

    interceptor: str

    def resolve(self, record: PluginRecord) -> Any:
        """Make the interceptor, and check the names of the calls that it watches."""
        make = _function(record, self.interceptor)
        try:
            made = make()
            if isinstance(made, import_object(f"{_INTERCEPTOR}:Interceptor")):
                import_object(f"{_INTERCEPTOR}:watched_calls")(made)
                return made
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin that calls sys.exit() must not end the program
            raise broken(record, error, doing="start") from error
        raise wrong_type(record, f"{self.interceptor}()", made, "an Interceptor")


@dataclass(frozen=True, slots=True)
class DialectSpec(Spec):
    """A span vocabulary: the attributes in which a tracer or proxy writes model calls and agents.

    Attributes:
        dialect: ``"package.module:NAME"``, a :class:`agl_core.adapter.Dialect` or a sequence of
            them; imported when an adapter first reads a span.
    """

    dialect: str

    def resolve(self, record: PluginRecord) -> Sequence[Any]:
        """Import the dialects and check their values, so that no span trips over them."""
        found = import_named(record, self.dialect)
        dialects = cast("Sequence[Any]", found if isinstance(found, (list, tuple)) else (found,))
        expected = import_object("agl_core.adapter:Dialect")
        mistakes_in = import_object("agl_core.adapter._dialects:dialect_mistakes")
        for dialect in dialects:
            if not isinstance(dialect, expected):
                raise wrong_type(record, self.dialect, dialect, "a Dialect")
            if mistakes := mistakes_in(dialect):
                raise unusable(record, f"{self.dialect}: {'; '.join(mistakes)}")
        return dialects

    def remarks(self, record: PluginRecord) -> Iterator[str]:
        """Yield the marks that match no span."""
        for dialect in self.resolve(record):
            for mark in dialect.marks:
                if "/" in mark:
                    yield f"the mark {mark!r} is a path; a mark is the name of an attribute"
            if not (dialect.marks or dialect.agents or dialect.proxy_span):
                yield f"the dialect {dialect.name!r} has no marks, so it reads no span"


@dataclass(frozen=True, slots=True)
class CallRuleSpec(Spec):
    """A rule that recognises auxiliary calls, such as those for a title.

    Attributes:
        rule: ``"package.module:function"``, a :data:`agl_core.adapter.CallRule`; imported when an
            adapter first asks for it.
    """

    rule: str

    def resolve(self, record: PluginRecord) -> Callable[..., Any]:
        """Import the function."""
        return _function(record, self.rule)


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
        key_variable: Environment variable with the key for entries of a model list that name no
            base URL and no key; empty if there is none.
        base_variable: The same for the base URL of such an entry.
    """

    protocols: tuple[str, ...]
    api_base: str = ""
    auth: _Auth = "bearer"
    headers: tuple[tuple[str, str], ...] = ()
    token_ids: bool = False
    logprobs: bool = False
    stream_usage: bool = False
    key_variable: str = ""
    base_variable: str = ""

    def resolve(self, record: PluginRecord) -> ProviderSpec:
        """Check the values, which a proxy uses as they are."""
        if mistakes := tuple(self._mistakes()):
            raise unusable(record, "; ".join(mistakes))
        return self

    def _mistakes(self) -> Iterator[str]:
        from agl_core.genai import PROTOCOLS

        # The values come from another author's code, which may not be type-checked.
        protocols = cast("object", self.protocols)
        if not isinstance(protocols, (list, tuple)) or not protocols:
            yield f"protocols is {protocols!r}, not a tuple of names"
        else:
            for name in cast("Sequence[object]", protocols):
                if name not in PROTOCOLS:
                    guess = did_you_mean(str(name), PROTOCOLS)
                    yield f"there is no protocol {name!r}{guess} (known: {', '.join(PROTOCOLS)})"
        base = cast("object", self.api_base)
        if not (isinstance(base, str) and (not base or _URL.match(base))):
            yield f"api_base {base!r} is not a URL"
        if self.auth not in get_args(_Auth):
            yield f"auth {self.auth!r} is not one of {', '.join(get_args(_Auth))}"
        headers = cast("object", self.headers)
        if not isinstance(headers, (list, tuple)):
            yield f"headers is a {type(headers).__name__}, not a tuple of pairs (name, value)"
            return
        for header in cast("Sequence[object]", headers):
            if not _is_header(header):
                yield f"{header!r} is not a header: a pair of a name and a value, both text"
        for name in ("token_ids", "logprobs", "stream_usage"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {getattr(self, name)!r}, not True or False"
        for name in ("key_variable", "base_variable"):
            if not isinstance(getattr(self, name), str):
                yield f"{name} is {getattr(self, name)!r}, not the name of a variable"


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
        """Import the function; one that reads a store is async, and no other is."""
        found = _function(record, self.check)
        if inspect.iscoroutinefunction(found) != self.reads_store:
            what = "reads a store and is not" if self.reads_store else "reads no store, but is"
            raise unusable(record, f"{self.check} {what} an async function")
        return found


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


@dataclass(frozen=True, slots=True)
class TemplateEngineSpec(Spec):
    """The engine of prompt templates whose ``engine`` is the plugin's name.

    Experimental: a release may change it.

    Attributes:
        fill: ``"package.module:function"``, called as ``fill(template, values)`` with the text of a
            template and its values by placeholder; returns the filled text.
    """

    fill: str

    def resolve(self, record: PluginRecord) -> Callable[[str, Mapping[str, Any]], str]:
        """Import the function."""
        return _function(record, self.fill)


@dataclass(frozen=True, slots=True)
class ProgressSpec(Spec):
    """What shows the progress of long work in a terminal.

    Experimental: a release may change it.

    Attributes:
        show: ``"package.module:function"``, called as ``show(description, total)`` with the name
            of the work and its number of steps, in any thread; returns a context manager that
            gives an :class:`agl_core.algorithm.ProgressReporter`.
    """

    show: str

    def resolve(self, record: PluginRecord) -> Callable[[str, int], Any]:
        """Import the function."""
        return _function(record, self.show)


@dataclass(frozen=True, slots=True)
class RunSpec(Spec):
    """A class of runs that can be resumed.

    Experimental: a release may change it.

    Attributes:
        run: ``"package.module:Class"``, a subclass of :class:`agl_core.algorithm.Run`; imported
            when a trainer begins a run of a name.
    """

    run: str

    def resolve(self, record: PluginRecord) -> type[Any]:
        """Import the class."""
        found = import_named(record, self.run)
        contract = import_object("agl_core.algorithm:Run")
        if not (inspect.isclass(found) and issubclass(found, contract)):
            raise wrong_type(record, self.run, cast("object", found), "a subclass of Run")
        return found


def _is_header(header: object) -> bool:
    if not (isinstance(header, tuple) and len(cast("tuple[object, ...]", header)) == 2):
        return False
    name, value = cast("tuple[object, object]", header)
    if not (isinstance(name, str) and isinstance(value, str)):
        return False
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


def _function(record: PluginRecord, dotted: str) -> Callable[..., Any]:
    found = import_named(record, dotted)
    if not callable(found):
        raise wrong_type(record, dotted, found, "a function")
    return found
