"""Results of agents, and the data that algorithms train on."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import BaseModel, Field

from agl_core.types._span import Span, SpanCoreFields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

if TYPE_CHECKING:
    RolloutRawResult = None | float | list[ReadableSpan] | list[Span] | list[SpanCoreFields]
    """Return value of an agent: None, its final reward, or spans to store."""
else:
    RolloutRawResult = Any  # naming ReadableSpan at run time would import the SDK


class Triplet(BaseModel):
    """One model call with its reward.

    The built-in adapters put dicts in ``prompt`` (``token_ids``, ``raw_content``, ``image_urls``)
    and ``response`` (``token_ids``, ``raw_content`` and, where captured, ``logprobs``).
    """

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class RewardMatchPolicy(StrEnum):
    """Policies that match a reward to a model call."""

    FIRST_SIBLING = "first_sibling"
    """The latest call that ended before the reward among the children of one parent."""
    FIRST_OCCURRENCE = "first_occurrence"
    """The latest call that ended before the reward anywhere in the trace."""


class OpenAIMessages(TypedDict):
    """One conversation in OpenAI's chat format."""

    messages: list[Any]
    tools: list[Any] | None


class ModelConfig(TypedDict):
    """One entry of a proxy's model list, in LiteLLM's shape."""

    model_name: str
    litellm_params: dict[str, Any]
