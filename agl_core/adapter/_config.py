"""Configuration models of the built-in adapters."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

from agl_core.types import RewardMatchPolicy

__all__ = ["MessagesConfig", "ProxyTripletConfig", "TrajectoryConfig", "TripletConfig"]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]


class TripletConfig(BaseModel):
    """Parameters of :class:`~agl_core.adapter.TracerTraceToTriplet`."""

    model_config = ConfigDict(extra="forbid")

    repair_hierarchy: bool = Field(
        default=True, description="Move stray spans below the span that encloses them in time."
    )
    llm_call_match: Regex | None = Field(
        default=r"openai\.chat\.completion",
        description="Regular expression of the span names that are model calls; "
        "null: all that a known tracer marks.",
    )
    agent_match: Regex | None = Field(
        default=None, description="Regular expression of the agents to keep; null: all."
    )
    exclude_llm_call_in_reward: bool = Field(
        default=True, description="Leave out the calls that a reward was computed with."
    )
    reward_match: RewardMatchPolicy = Field(
        default=RewardMatchPolicy.FIRST_OCCURRENCE,
        description="How a reward is matched to a call.",
    )
    skip_empty_token_spans: bool = Field(
        default=False,
        validation_alias=AliasChoices("skip_empty_token_spans", "_skip_empty_token_spans"),
        description="Leave out calls without token ids.",
    )


class ProxyTripletConfig(BaseModel):
    """:class:`~agl_core.adapter.LlmProxyTraceToTriplet` takes no parameters."""

    model_config = ConfigDict(extra="forbid")


class MessagesConfig(BaseModel):
    """:class:`~agl_core.adapter.TraceToMessages` takes no parameters."""

    model_config = ConfigDict(extra="forbid")


class TrajectoryConfig(BaseModel):
    """Parameters of :class:`~agl_core.adapter.TraceToTrajectory`."""

    model_config = ConfigDict(extra="forbid")

    llm_call_match: Regex | None = Field(
        default=None,
        description="Regular expression of the span names that are model calls; "
        "null: all that a known tracer or proxy marks.",
    )
    agent_match: Regex | None = Field(
        default=None, description="Regular expression of the agents to keep; null: all."
    )
    exclude_llm_call_in_reward: bool = Field(
        default=True, description="Leave out the calls that a reward was computed with."
    )
    reward_match: RewardMatchPolicy = Field(
        default=RewardMatchPolicy.FIRST_OCCURRENCE,
        description="How a reward is matched to a call.",
    )
    repair_hierarchy: bool = Field(
        default=True, description="Move stray spans below the span that encloses them in time."
    )
