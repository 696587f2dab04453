"""Semantic conventions: span names and attribute keys of the wire format.

The ``agentlightning.*`` names equal those of agent-lightning 0.3, so that each framework can read
the spans of the other.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

__all__ = [
    "ATTEMPT_ID",
    "INFRASTRUCTURE_CODES",
    "INFRASTRUCTURE_HEADER",
    "LATE",
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
    "PRIMARY_REWARD_VALUE",
    "PROMPT_HISTORY",
    "PROMPT_HISTORY_REASON",
    "REQUEST_DEFAULTS",
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
    "STOP_REASON",
    "STOP_SEQUENCE",
    "TAG",
    "TRACER_NAME",
    "WRITTEN_BY",
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
PRIMARY_REWARD_VALUE: Final = f"{REWARD}.0.value"
WRITTEN_BY: Final = "agl.written_by"
"""``attempt`` in a span that came with an attempt's own token; only a store server writes it."""
LATE: Final = "agl.late"
"""True in a span that came after its attempt had ended; its reward does not count."""
LINK: Final = "agentlightning.link"
TAG: Final = "agentlightning.tag"
MESSAGE_BODY: Final = "agentlightning.message.body"
OBJECT_TYPE: Final = "agentlightning.object.type"
OBJECT_LITERAL: Final = "agentlightning.object.literal"
OBJECT_JSON: Final = "agentlightning.object.json"
OPERATION_NAME: Final = "agentlightning.operation.name"
OPERATION_INPUT: Final = "agentlightning.operation.input"
OPERATION_OUTPUT: Final = "agentlightning.operation.output"

REPLAYED_CALL: Final = "agl.replay.call"
"""Number of the recorded call that answered a call; absent if a model did."""
RECORDED_OPERATION: Final = "agl.operation.record"
"""JSON of a recorded operation: ``arguments``, and ``result`` or ``error``."""
MODEL_VERSION: Final = "agentlightning.model_version"
"""Version of the weights that answered a model call; written by LLM proxies."""
STOP_REASON: Final = "agl.response.stop_reason"
"""Why an answer ended, in the words of its server, such as ``pause_turn``; absent if
``gen_ai.response.finish_reasons`` says it. ``.1`` follows the key for the second choice, as it does
for :data:`STOP_SEQUENCE`."""
STOP_SEQUENCE: Final = "agl.response.stop_sequence"
"""The stop sequence that ended an answer, or the id of the stop token."""
REQUEST_DEFAULTS: Final = "agl.proxy.request_defaults"
"""JSON object of the parameters that an LLM proxy added to a model call: those of its entry of the
model list that the request left out. ``gen_ai.request.*`` are the agent's own."""
PROMPT_HISTORY: Final = "agl.proxy.history"
"""Where the prompt of a model call is from, written by LLM proxies that continue conversations in
token space. ``new``: the chat template, since no answer is before it. ``continued``: the tokens of
the earlier calls as they were sampled, and what the template renders of the messages after them.
``exact``: the chat template; :data:`PROMPT_HISTORY_REASON` says why."""
PROMPT_HISTORY_REASON: Final = "agl.proxy.history.reason"
"""Why a model call with a history does not continue its tokens."""

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


INFRASTRUCTURE_HEADER: Final = "x-agl-infrastructure"
"""Header of a proxy's error reply that is not about the call: one of the codes below."""
INFRASTRUCTURE_CODES: Final = frozenset(
    {
        "aborted",
        "backend_unreachable",
        "connect_timeout",
        "connection_broken",
        "proxy_stopped",
        "queue_timeout",
        "store_unavailable",
        "stream_cut",
    }
)
"""Codes of errors that would meet any call then: a server was away, or stopped."""
