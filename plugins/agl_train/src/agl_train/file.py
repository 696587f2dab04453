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
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from agl_cli_kit import readable_store
from agl_core.agent import LitAgent
from agl_core.algorithm import Algorithm, RewardRange
from agl_core.errors import ConfigError
from agl_core.llm_server import LLMServer
from agl_core.plugins import build_component, read_config_file, validate_config
from agl_core.runner import Hook, Runner
from agl_core.store import Interceptor, LightningStore
from agl_core.tracer import UnsentSpans
from agl_core.trainer import Trainer, default_strategy
from agl_core.types import Dataset, Resource
from agl_train.datasets import load_dataset
from agl_train.keys import TrainFile
from agl_train.parts import (
    PARTS,
    check_component,
    component_of,
    default_type,
    environment_of,
    hook_of,
    interceptor_of,
    resource_of,
    type_name,
)
from agl_train.problems import Problems
from agl_train.references import search_in

__all__ = ["NO_ALGORITHM", "TrainPlan", "read_train_file"]

NO_ALGORITHM: Final = 'is missing; add one, e.g. algorithm = "baseline", which runs the datasets'


class TrainPlan:
    """A train file whose parts were all found and checked; no component is built yet.

    The plugins' hook modules and config models are imported, but not their implementations.

    Args:
        content: Content of the file.
        directory: Base of the relative paths in it.
        problems: Collects the invalid entries instead of raising them; the plan lacks those.

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
        if any(":" in type_name(getattr(content, key) or "") for key in PARTS):
            search_in(directory)  # a component may be in a module next to the file
        for key in PARTS:
            with found.collected():
                spec = component_of(content, key, directory)
                if spec is not None:
                    check_component(key, spec)
                self._components[key] = spec
        for name, table in (content.resources or {}).items():
            with found.collected():
                self.resources = {**(self.resources or {}), name: resource_of(name, table)}
        with found.collected():
            if content.agent:  # otherwise it is missing, which is known already
                environment = environment_of(content.agent, directory)
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
                self.hooks.append(hook_of(i, text, directory))
        for i, text in enumerate(content.interceptors):
            with found.collected():
                self.interceptors.append(interceptor_of(i, text, directory))
        if problems is None:
            found.raise_all()

    @property
    def store_name(self) -> str:
        """Name or reference of the store in the file."""
        return type_name(self._components["store"])

    @property
    def reward_range(self) -> RewardRange | None:
        """Lowest and highest possible reward, as the file declares them, or else the agent."""
        return RewardRange.of(
            self.content.trainer.reward_range, path="trainer.reward_range"
        ) or RewardRange.of(self.agent.reward_range, path="agent.reward_range")

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
            for key, part in PARTS.items()
            if with_algorithm or key != "algorithm"
        }
        return Trainer(
            **components,
            **self.content.trainer.model_dump(),
            hooks=self.hooks,
            interceptors=self.interceptors,
            initial_resources=self.resources,
        )

    def build_store_to_read(self) -> LightningStore:
        """Build the store alone, for a command that writes nothing.

        Raises:
            ConfigError: It refuses its options.
            PluginError: It cannot be used.
        """
        spec = self._components["store"]
        if isinstance(spec, dict):
            spec = readable_store(cast("dict[str, Any]", spec))
        return build_component("store", spec, path="store", default=default_type("store"))

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
        for key, part in PARTS.items():
            spec = self._components.get(key)
            if key != "store" and spec is not None:
                expected = Runner if key == "runner" else None
                with problems.collected():
                    built: Any = build_component(
                        part.kind,
                        spec,
                        inject={name: values[name]() for name in part.supplied if name in values},
                        default=default_type(key),
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
            key: type_name(spec if isinstance(spec, (str, dict)) else getattr(self.content, key))
            for key, spec in self._components.items()
            if spec
        }
        named.setdefault("strategy", default_strategy().name)
        sizes = {
            name: f"{len(dataset)} tasks"
            for name in ("train_dataset", "val_dataset", "test_dataset")
            if (dataset := getattr(self, name)) is not None
        }
        return {"agent": type_name(self.content.agent), **sizes, **named}


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
    _put_store_beside(data, file.absolute().parent)
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


def _put_store_beside(data: dict[str, Any], directory: Path) -> None:
    """Take the path of a store as relative to the file, as all others are, and not to the shell."""
    store = data.get("store")
    path: Any = cast("dict[str, Any]", store).get("path") if isinstance(store, dict) else None
    if isinstance(path, str) and path and "://" not in path and directory != Path.cwd():
        cast("dict[str, Any]", store)["path"] = str(directory / Path(path).expanduser())


def _override(data: dict[str, Any], override: str) -> None:
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
