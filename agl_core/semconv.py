"""Semantic conventions: span names and attribute keys of the wire format.

The ``agentlightning.*`` names equal those of agent-lightning 0.3, so that each framework can read
the spans of the other.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

__all__ = [
    "ATTEMPT_ID",
    "LINK",
    "MESSAGE_BODY",
    "MODEL_VERSION",
    "OBJECT_JSON",
    "OBJECT_LITERAL",
    "OBJECT_TYPE",
    "OPERATION_INPUT",
    "OPERATION_NAME",
    "OPERATION_OUTPUT",
    "PRIMARY_REWARD",
    "REWARD",
    "ROLLOUT_ID",
    "SPAN_ANNOTATION",
    "SPAN_EXCEPTION",
    "SPAN_MESSAGE",
    "SPAN_MODEL_CALL",
    "SPAN_OBJECT",
    "SPAN_OPERATION",
    "SPAN_REWARD",
    "SPAN_SEQUENCE_ID",
    "SPAN_VIRTUAL",
    "TAG",
    "TRACER_NAME",
    "LinkPydanticModel",
    "RewardPydanticModel",
]

# Span names.
SPAN_ANNOTATION: Final = "agentlightning.annotation"
SPAN_MESSAGE: Final = "agentlightning.message"
SPAN_OBJECT: Final = "agentlightning.object"
SPAN_EXCEPTION: Final = "agentlightning.exception"
SPAN_OPERATION: Final = "agentlightning.operation"
SPAN_REWARD: Final = "agentlightning.reward"
"""Read as an operation name only; reward spans are written under :data:`SPAN_ANNOTATION`."""
SPAN_VIRTUAL: Final = "agentlightning.virtual"
SPAN_MODEL_CALL: Final = "agl.proxy.openai.chat.completion"
"""A model call that an LLM proxy recorded, in any protocol. The name contains
``openai.chat.completion``, by which adapters of tracers find model calls."""

# Keys that assign a span to an attempt; on the span itself or on its OpenTelemetry resource.
ROLLOUT_ID: Final = "agentlightning.rollout_id"
ATTEMPT_ID: Final = "agentlightning.attempt_id"
SPAN_SEQUENCE_ID: Final = "agentlightning.span_sequence_id"
TRACER_NAME: Final = "agentlightning.tracer.name"

# Attribute keys; REWARD, LINK and TAG are prefixes of ``<prefix>.<i>[.<field>]``.
REWARD: Final = "agentlightning.reward"
LINK: Final = "agentlightning.link"
TAG: Final = "agentlightning.tag"
MESSAGE_BODY: Final = "agentlightning.message.body"
OBJECT_TYPE: Final = "agentlightning.object.type"
OBJECT_LITERAL: Final = "agentlightning.object.literal"
OBJECT_JSON: Final = "agentlightning.object.json"
OPERATION_NAME: Final = "agentlightning.operation.name"
OPERATION_INPUT: Final = "agentlightning.operation.input"
OPERATION_OUTPUT: Final = "agentlightning.operation.output"

MODEL_VERSION: Final = "agentlightning.model_version"
"""Version of the weights that answered a model call; written by LLM proxies."""

PRIMARY_REWARD: Final = "primary"
"""Name of the reward dimension of a reward that is a single number."""


class RewardPydanticModel(BaseModel):
    """One dimension of a reward, stored under ``agentlightning.reward.<i>.{name,value}``."""

    name: str
    value: float


class LinkPydanticModel(BaseModel):
    """One link, stored under ``agentlightning.link.<i>.{key_match,value_match}``.

    The values ``trace_id`` and ``span_id`` of ``key_match`` mean the span's ids; any other value
    is the key of an attribute.
    """

    key_match: str
    value_match: str
