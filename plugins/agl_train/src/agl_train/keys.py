"""The keys of a train file and the form of their values."""

from __future__ import annotations

import logging
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from agl_core.algorithm import RewardRange


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


def _as_range(value: Any) -> RewardRange | None:
    return RewardRange.of(value, path="")


Range = Annotated[tuple[float, float] | None, BeforeValidator(_as_range)]
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
    reward_range: Range = None


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
