"""The adapters ``triplet``, ``proxy-triplet`` and ``messages``, and what other adapters read with.

:class:`TraceTree` arranges the spans of an attempt and finds its model calls, :class:`ModelCall`
reads one in any dialect, :func:`distinct_calls` decides what counts as one call,
:func:`match_rewards` assigns rewards to calls.
"""

from agl_adapters.auxiliary import auxiliary_calls
from agl_adapters.chat import to_messages
from agl_adapters.config import CallConfig
from agl_adapters.foreign_spans import with_conventions
from agl_adapters.messages import TraceToMessages
from agl_adapters.model_call import ModelCall
from agl_adapters.prefix_index import ITEM_BYTES, PrefixIndex, common_prefix
from agl_adapters.proxy_triplet import LlmProxyTraceToTriplet
from agl_adapters.recorded_calls import (
    answers_of,
    call_order,
    ended_by_agent,
    failed_at_server,
    is_broken,
    sent_messages,
    system_text,
)
from agl_adapters.rewards import match_rewards
from agl_adapters.sampling import (
    altered_sampling,
    other_sampling,
    request_parameters,
    sampling_advice,
)
from agl_adapters.tree import (
    VIRTUAL_ROOT,
    CallRules,
    MatchedCall,
    TraceTree,
    by_start,
    calls_among,
    distinct_calls,
    find_auxiliary_calls,
    keep_used_choices,
    leave_out_auxiliary,
    total_tokens,
)
from agl_adapters.triplet import TracerTraceToTriplet
from agl_adapters.vocabulary import is_model_call

__all__ = [
    "ITEM_BYTES",
    "VIRTUAL_ROOT",
    "CallConfig",
    "CallRules",
    "LlmProxyTraceToTriplet",
    "MatchedCall",
    "ModelCall",
    "PrefixIndex",
    "TraceToMessages",
    "TraceTree",
    "TracerTraceToTriplet",
    "altered_sampling",
    "answers_of",
    "auxiliary_calls",
    "by_start",
    "call_order",
    "calls_among",
    "common_prefix",
    "distinct_calls",
    "ended_by_agent",
    "failed_at_server",
    "find_auxiliary_calls",
    "is_broken",
    "is_model_call",
    "keep_used_choices",
    "leave_out_auxiliary",
    "match_rewards",
    "other_sampling",
    "request_parameters",
    "sampling_advice",
    "sent_messages",
    "system_text",
    "to_messages",
    "total_tokens",
    "with_conventions",
]
