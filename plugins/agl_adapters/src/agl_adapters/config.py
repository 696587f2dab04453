"""Options of the built-in adapters."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from agl_core.plugins import ComponentConfig
from agl_core.types import RewardMatchPolicy


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]


class KeepAuxiliary(ComponentConfig):
    """The option of all adapters of this package."""

    keep_auxiliary: bool = False
    """Keep auxiliary calls: those for titles, topic checks and the like, and those that their
    client gave up and made again. By default they are left out and counted."""


class CallConfig(KeepAuxiliary):
    """Options of adapters that read model calls and their rewards from a :class:`TraceTree`."""

    repair_hierarchy: bool = Field(default=True, kw_only=False)
    """Move spans that lost their parent below the span that encloses them in time."""
    llm_call_match: Regex | None = Field(default=None, kw_only=False)
    """Regular expression searched in span names to find model calls. None: every span that a known
    dialect marks as a model call, whatever its name."""
    agent_match: Regex | None = Field(default=None, kw_only=False)
    """Regular expression searched in agent names; only calls inside a matching agent count. None:
    all calls."""
    exclude_llm_call_in_reward: bool = Field(default=True, kw_only=False)
    """Leave out the calls that a reward was computed with."""
    reward_match: RewardMatchPolicy = Field(
        default=RewardMatchPolicy.FIRST_OCCURRENCE, kw_only=False
    )
    """How a reward is matched to a call."""


class TripletConfig(CallConfig):
    """Options of :class:`~agl_adapters.TracerTraceToTriplet`."""

    skip_empty_token_spans: bool = Field(
        default=False,
        validation_alias=AliasChoices("skip_empty_token_spans", "_skip_empty_token_spans"),
    )
    """Leave out calls that lack token ids of the prompt or the response, so that no reward is
    assigned to them. ``_skip_empty_token_spans`` is its name in agent-lightning 0.3."""


class ProxyTripletConfig(KeepAuxiliary):
    """Options of :class:`~agl_adapters.LlmProxyTraceToTriplet`."""


class MessagesConfig(KeepAuxiliary):
    """Options of :class:`~agl_adapters.TraceToMessages`."""
