"""Emitters: functions with which an agent adds spans to its trace, and readers of these spans.

An emitter looks up the active tracer when it is called, so a module that uses emitters can be
imported anywhere. Outside a rollout an emitter raises, except with ``propagate=False``.
"""

from agl_core.emitter._chance import now, random
from agl_core.emitter._operation import OperationContext, operation
from agl_core.emitter._recorded import answering_operations
from agl_core.emitter._reward import (
    by_authority,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)
from agl_core.emitter._values import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    get_message_value,
    get_object_value,
)

__all__ = [
    "OperationContext",
    "answering_operations",
    "by_authority",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "now",
    "operation",
    "random",
    "reward",
]
