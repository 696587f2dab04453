"""Train files: the description of a run in TOML, YAML or JSON.

::

    agent = "agent.py:solve"            # or "package.module:name", or an environment:
    # agent = { type = "gymnasium:FrozenLake-v1", tasks = 100 }   # its tasks are the datasets
    train_dataset = "train.jsonl"       # see agl_train.datasets
    val_dataset = "val.jsonl"
    test_dataset = "test.jsonl"         # which the search never sees: its result is measured on it
    algorithm = "apo"                   # a name, or a table with a type and its options
    store = { type = "sqlite", path = "runs.db" }   # see agl_core.store.default_store

    llm_server = { type = "vllm", path = "Qwen/Qwen3-8B" }   # behind the proxy

    [trainer]
    n_runners = 8

    [resources.prompt]
    type = "prompt_template"
    engine = "f-string"
    template = "Solve: {task}"

Paths are relative to the file. A component can be in a file too: ``algorithm =
"search.py:try_prompts"`` names a class, an ``@algo`` function or a plain function. Every mistake is
a :class:`~agl_core.errors.ConfigError` that starts with the path to it in the file.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from agl_core.agent import Environment, LitAgent, load_environment
from agl_core.algorithm import Algorithm, algo
from agl_core.errors import AgentSignatureError, ConfigError, InvalidArgumentError, PluginError
from agl_core.llm_server import LLMServer
from agl_core.plugins import (
    CONFIG_SUFFIXES,
    build_component,
    contract_of,
    did_you_mean,
    get_registry,
    read_config_file,
    resolve_component,
    validate_config,
)
from agl_core.runner import Hook, Runner
from agl_core.store import Interceptor, as_interceptor, default_store
from agl_core.tracer import UnsentSpans
from agl_core.trainer import Trainer, default_strategy
from agl_core.types import Dataset, Resource, resource_types
from agl_train.datasets import load_dataset
from agl_train.problems import Problems
from agl_train.references import dotted_path, import_reference, is_reference, search_in

NO_ALGORITHM: Final = 'is missing; add one, e.g. algorithm = "baseline", which runs the datasets'


def _is_spec(value: Any) -> Any:
    if not isinstance(value, (str, dict)):
        raise ValueError("should be a name or a table with a 'type'")
    return cast("Any", value)


def _is_dataset(value: Any) -> Any:
    if not isinstance(value, (str, list)):
        raise ValueError("should be a path, 'package.module:name' or a list of tasks")
    return cast("Any", value)


def _is_agent(value: Any) -> Any:
    if not isinstance(value, (str, dict)):
        raise ValueError("should be a reference or a table with a 'type'")
    return cast("Any", value)


AgentSpec = Annotated[Any, AfterValidator(_is_agent)]
Spec = Annotated[Any, AfterValidator(_is_spec)]
DatasetSpec = Annotated[Any, AfterValidator(_is_dataset)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TrainerTable(_Table):
    """The table ``[trainer]``."""

    n_runners: int | None = Field(default=None, ge=1)
    max_rollouts: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    port: int | None = Field(default=None, ge=0, le=65535)
    reward_range: tuple[float, float] | None = None


class LoggingTable(_Table):
    """The table ``[logging]``: arguments of :func:`~agl_cli_kit.logs.setup_logging`."""

    level: str | int = "INFO"
    color: bool | None = None
    files: str | dict[str, str] | None = None
    submodule_levels: dict[str, str | int] = Field(default_factory=dict)

    @field_validator("level", "submodule_levels")
    @classmethod
    def _known_levels(
        cls, value: str | int | dict[str, str | int]
    ) -> str | int | dict[str, str | int]:
        known = logging.getLevelNamesMapping()
        for level in value.values() if isinstance(value, dict) else [value]:
            if isinstance(level, str) and level.strip().upper() not in known:
                raise ValueError(
                    f"{level!r} is not a log level; use one of {', '.join(sorted(known))}"
                )
        return value


class TrainFile(_Table):
    """The keys of a train file."""

    agent: AgentSpec
    train_dataset: DatasetSpec | None = None
    val_dataset: DatasetSpec | None = None
    test_dataset: DatasetSpec | None = None
    trainer: TrainerTable = Field(default_factory=TrainerTable)
    algorithm: Spec | None = None
    store: Spec | None = None
    tracer: Spec | None = None
    adapter: Spec | None = None
    strategy: Spec | None = None
    proxy: Spec | None = None
    llm_server: Spec | None = None
    tracker: Spec | None = None
    runner: Spec | None = None
    hooks: list[str] = Field(default_factory=list)
    interceptors: list[str] = Field(default_factory=list)
    resources: dict[str, dict[str, Any]] | None = None
    logging: LoggingTable = Field(default_factory=LoggingTable)


@dataclass(frozen=True, slots=True)
class _Part:
    kind: str
    argument: str  # of Trainer
    default: str = ""  # the component type of a table that has no "type"
    supplied: tuple[str, ...] = ()  # arguments that the trainer injects


_PARTS: Final[Mapping[str, _Part]] = {
    "algorithm": _Part("algorithm", "algorithm"),
    "store": _Part("store", "store", "memory"),
    "tracer": _Part("tracer", "tracer", "otel"),
    "adapter": _Part("adapter", "adapter", "triplet"),
    "strategy": _Part("execution", "strategy", "", ("n_runners", "server_port")),
    "proxy": _Part("proxy", "llm_proxy", "direct", ("store",)),
    "llm_server": _Part("llm_server", "llm_server"),
    "tracker": _Part("metrics", "tracker"),
    "runner": _Part(
        "runner",
        "runner",
        "agent",
        ("tracer", "max_rollouts", "concurrency"),
    ),
}


class TrainPlan:
    """A train file whose parts were all found and checked; no component is built yet.

    The plugins' hook modules and config models are imported, but not their implementations.

    Args:
        content: Content of the file.
        directory: Base of the relative paths in it.

    Attributes:
        agent: The agent.
        train_dataset: Tasks to learn from, if any.
        val_dataset: Tasks to measure on, if any.
        test_dataset: Tasks to test the result of the run on, if any.
        resources: Resources that the algorithm starts from; None uses those in the store.
        hooks: Callbacks around each rollout.
        interceptors: Code around the calls of the run's store.

    Raises:
        ConfigError: The file has invalid entries; the message names all of them.
        PluginError: A component named in the file cannot be used.
    """

    agent: LitAgent[Any]

    def __init__(
        self, content: TrainFile, directory: Path, problems: Problems | None = None
    ) -> None:
        self.content = content
        self.resources: dict[str, Resource] | None = None if content.resources is None else {}
        self.train_dataset: Dataset[Any] | None = None
        self.val_dataset: Dataset[Any] | None = None
        self.test_dataset: Dataset[Any] | None = None
        self.hooks: list[Hook] = []
        self.interceptors: list[Interceptor] = []
        self._components: dict[str, Any] = {}
        found = Problems() if problems is None else problems
        if any(":" in _type_name(getattr(content, key) or "") for key in _PARTS):
            search_in(directory)  # a component may be in a module next to the file
        for key in _PARTS:
            with found.collected():
                spec = _component(content, key, directory)
                if spec is not None:
                    _check_component(key, spec)
                self._components[key] = spec
        for name, table in (content.resources or {}).items():
            with found.collected():
                self.resources = {**(self.resources or {}), name: _resource(name, table)}
        with found.collected():
            if content.agent:  # otherwise it is missing, which is known already
                environment = _environment(content.agent, directory)
                self.agent = environment.agent
                self.train_dataset = environment.train_dataset
                self.val_dataset = environment.val_dataset
        for key in ("train_dataset", "val_dataset", "test_dataset"):
            spec = getattr(content, key)
            with found.collected():
                if spec is not None:
                    setattr(self, key, load_dataset(spec, directory, path=key))
        for i, text in enumerate(content.hooks):
            with found.collected():
                self.hooks.append(_hook(i, text, directory))
        for i, text in enumerate(content.interceptors):
            with found.collected():
                self.interceptors.append(_interceptor(i, text, directory))
        if problems is None:
            found.raise_all()

    @property
    def store_name(self) -> str:
        """Name or reference of the store in the file."""
        return _type_name(self._components["store"])

    def build_trainer(self, *, with_algorithm: bool = True) -> Trainer:
        """Build the components and the trainer.

        Args:
            with_algorithm: False leaves the algorithm out, for an evaluation.

        Raises:
            ConfigError: A component refuses its options.
            ComponentTypeError: A component is not of its kind.
            PluginError: A component cannot be used.
        """
        components = {
            part.argument: self._components[key]
            for key, part in _PARTS.items()
            if with_algorithm or key != "algorithm"
        }
        return Trainer(
            **components,
            **self.content.trainer.model_dump(),
            hooks=self.hooks,
            interceptors=self.interceptors,
            initial_resources=self.resources,
        )

    def check_parts(self, problems: Problems) -> dict[str, str]:
        """Find what only building a component shows; the store is left alone.

        Args:
            problems: Collects the parts that cannot be built.

        Returns:
            What a run will use, as the algorithm's check says, by name.
        """
        rows: dict[str, str] = {}
        values: dict[str, Callable[[], Any]] = {
            "n_runners": lambda: self.content.trainer.n_runners or 1,
            "store": partial(build_component, "store", "memory"),
            "tracer": UnsentSpans,
        }
        with problems.collected():
            if self.content.algorithm is None:
                raise ConfigError(NO_ALGORITHM, path="algorithm")
        for key, part in _PARTS.items():
            spec = self._components.get(key)
            if key != "store" and spec is not None:
                expected = Runner if key == "runner" else None
                with problems.collected():
                    built: Any = build_component(
                        part.kind,
                        spec,
                        inject={name: values[name]() for name in part.supplied if name in values},
                        default=_default_type(key),
                        expected=expected,
                        path=key,
                    )
                    if isinstance(built, Algorithm):
                        found = asyncio.run(built.check()) or {}
                        rows |= {f"{key}.{name}": value for name, value in found.items()}
                    elif isinstance(built, LLMServer):
                        asyncio.run(built.check())

        return rows

    def describe(self) -> dict[str, str]:
        """Return the components of the run by name, for display."""
        named = {
            key: _type_name(spec if isinstance(spec, (str, dict)) else getattr(self.content, key))
            for key, spec in self._components.items()
            if spec
        }
        named.setdefault("strategy", default_strategy().name)
        sizes = {
            name: f"{len(dataset)} tasks"
            for name in ("train_dataset", "val_dataset", "test_dataset")
            if (dataset := getattr(self, name)) is not None
        }
        return {"agent": _type_name(self.content.agent), **sizes, **named}


def read_train_file(
    file: str | Path,
    overrides: Iterable[str] = (),
    *,
    without: Iterable[str] = (),
    problems: Problems | None = None,
) -> TrainPlan:
    """Read a train file and check everything in it.

    Args:
        file: A TOML, YAML or JSON file.
        overrides: ``key=value`` each, where the key is dotted (``trainer.n_runners``) and the value
            is TOML, or else a text.
        without: Keys to leave out unread: the caller does not need them, and what they refer to
            may be missing on this machine.
        problems: Collects the invalid entries instead of raising them; the plan lacks those.

    Raises:
        ConfigError: The file is unreadable or has invalid entries.
        PluginError: A component named in the file cannot be used.
    """
    file = Path(file)
    data = read_config_file(file)
    for override in overrides:
        _override(data, override)
    for key in without:
        data.pop(key, None)
    found = Problems() if problems is None else problems
    plan = TrainPlan(_content(data, found), file.absolute().parent, found)
    if problems is None:
        found.raise_all()
    return plan


def _content(data: dict[str, Any], problems: Problems) -> TrainFile:
    """Return the valid part of a train file, so that its mistakes are found too."""
    try:
        return validate_config(TrainFile, data)
    except ConfigError as error:
        problems.found.append(error)
        invalid = error.__cause__
        assert isinstance(invalid, ValidationError)
        bad = {str(detail["loc"][0]) for detail in invalid.errors()}
        valid = {key: value for key, value in data.items() if key not in bad}
        return TrainFile.model_validate({"agent": "", **valid})


def _override(data: dict[str, Any], override: str) -> None:
    import tomllib

    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"{override!r} is not of the form key=value", path="--set")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table = data
    for depth, key in enumerate(keys[:-1]):
        inner: Any = table.setdefault(key, {})
        if isinstance(inner, str) and depth == 0:  # "sqlite" is short for {type = "sqlite"}
            inner = table[key] = {"type": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(keys[: depth + 1])} is not a table", path="--set")
        table = cast("dict[str, Any]", inner)
    table[keys[-1]] = value


def _component(content: TrainFile, key: str, directory: Path) -> Any:
    spec = getattr(content, key)
    if spec is None:
        return default_store(directory) if key == "store" else None
    if isinstance(spec, str) and spec.lower().endswith(CONFIG_SUFFIXES):
        return str(directory / spec)
    name = _type_name(spec)
    distribution = name.rpartition(":")[0]
    if not is_reference(name) or get_registry().provides(_PARTS[key].kind, distribution):
        return spec
    found = import_reference(name, directory, path=key)
    dotted = dotted_path(name)
    if not isinstance(spec, str):
        return {**spec, "type": dotted}
    return _algorithm(found, key) if key == "algorithm" and _is_plain(found) else dotted


def _is_plain(found: object) -> bool:
    """Tell whether an object is a function; one without parameters makes a component."""
    return inspect.isfunction(found) and bool(inspect.signature(found).parameters)


def _algorithm(function: Callable[..., Any], path: str) -> Algorithm:
    try:
        return algo(function)
    except ConfigError as error:
        raise ConfigError(str(error), path=path) from error


def _check_component(key: str, spec: Any) -> None:
    part = _PARTS[key]
    contract = contract_of(part.kind)
    if contract and isinstance(spec, contract):
        return
    supplied = dict.fromkeys(part.supplied)
    try:
        blueprint = resolve_component(
            part.kind, spec, inject=supplied, default=_default_type(key), path=key
        )
    except PluginError as error:
        raise type(error)(f"{key}: {error}") from error
    factory = blueprint.factory
    if contract and inspect.isclass(factory) and not issubclass(factory, contract):
        raise ConfigError(f"{blueprint.source} is not a subclass of {contract.__name__}", path=key)


def _default_type(key: str) -> str | None:
    return default_strategy().name if key == "strategy" else _PARTS[key].default or None


def _type_name(spec: Any) -> str:
    return spec if isinstance(spec, str) else str(spec.get("type", "default"))


def _resource(name: str, table: dict[str, Any]) -> Resource:
    path = f"resources.{name}"
    fields = dict(table)
    key = "resource_type" if "resource_type" in fields else "type"
    known = resource_types()
    type_name = fields.pop(key, None)
    if type_name is None:
        raise ConfigError(f"has no 'type' (known: {', '.join(known)})", path=path)
    if type_name not in known:
        hint = did_you_mean(str(type_name), known) or f" (known: {', '.join(known)})"
        raise ConfigError(f"there is no resource type {type_name!r}{hint}", path=f"{path}.{key}")
    model = known[type_name]
    for field in fields:
        if field not in model.model_fields and model.model_config.get("extra") != "allow":
            hint = did_you_mean(field, model.model_fields)
            raise ConfigError(f"unknown option{hint}", path=f"{path}.{field}")
    return validate_config(model, {**fields, "resource_type": type_name}, path=path)


def _environment(spec: str | dict[str, Any], directory: Path) -> Environment:
    """Return the environment that an agent's spec names, or an agent without tasks."""
    options = {} if isinstance(spec, str) else dict(spec)
    reference = spec if isinstance(spec, str) else options.pop("type", None)
    if not isinstance(reference, str):
        raise ConfigError("has no 'type', the reference of an environment", path="agent")
    if environment := load_environment(reference, options):
        return environment
    if options:
        raise ConfigError(
            f"unknown option: {reference} is not an environment", path=f"agent.{min(options)}"
        )
    return Environment(_agent(reference, directory))


def _agent(text: str, directory: Path) -> LitAgent[Any]:
    from agl_core.agent import rollout

    found: Any = import_reference(text, directory, path="agent")
    try:
        if inspect.isclass(found) and issubclass(found, LitAgent):
            found = cast("Any", found)()
        elif inspect.isfunction(found):
            found = rollout(found)
        if isinstance(found, LitAgent):
            agent = cast("LitAgent[Any]", found)
            agent.check_signature()
            return agent
    except (AgentSignatureError, TypeError) as error:
        raise ConfigError(f"{text}: {error}", path="agent") from error
    raise ConfigError(f"{text} is of type {type(found).__name__}, not an agent", path="agent")


def _hook(index: int, text: str, directory: Path) -> Hook:
    path = f"hooks.{index}"
    found = import_reference(text, directory, path=path)
    hook = found() if isinstance(found, type) else found
    if not isinstance(hook, Hook):
        raise ConfigError(f"{text} is of type {type(hook).__name__}, not a Hook", path=path)
    return hook


def _interceptor(index: int, text: str, directory: Path) -> Interceptor:
    path = f"interceptors.{index}"
    found = import_reference(text, directory, path=path)
    try:
        return as_interceptor(found() if isinstance(found, type) else found)
    except InvalidArgumentError as error:
        raise ConfigError(str(error), path=path) from error
