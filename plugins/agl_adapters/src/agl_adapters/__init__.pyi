from .auxiliary import (
    auxiliary_calls as auxiliary_calls,
)
from .chat import (
    to_messages as to_messages,
)
from .config import (
    CallConfig as CallConfig,
)
from .foreign_spans import (
    with_conventions as with_conventions,
)
from .messages import (
    TraceToMessages as TraceToMessages,
)
from .model_call import (
    ModelCall as ModelCall,
)
from .prefix_index import (
    ITEM_BYTES as ITEM_BYTES,
    PrefixIndex as PrefixIndex,
    common_prefix as common_prefix,
)
from .proxy_triplet import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
)
from .recorded_calls import (
    answers_of as answers_of,
    call_order as call_order,
    ended_by_agent as ended_by_agent,
    failed_at_server as failed_at_server,
    is_broken as is_broken,
    sent_messages as sent_messages,
    system_text as system_text,
)
from .rewards import (
    match_rewards as match_rewards,
)
from .sampling import (
    altered_sampling as altered_sampling,
    other_sampling as other_sampling,
    request_parameters as request_parameters,
    sampling_advice as sampling_advice,
)
from .tree import (
    VIRTUAL_ROOT as VIRTUAL_ROOT,
    CallRules as CallRules,
    MatchedCall as MatchedCall,
    TraceTree as TraceTree,
    by_start as by_start,
    calls_among as calls_among,
    distinct_calls as distinct_calls,
    find_auxiliary_calls as find_auxiliary_calls,
    keep_used_choices as keep_used_choices,
    leave_out_auxiliary as leave_out_auxiliary,
    total_tokens as total_tokens,
)
from .triplet import (
    TracerTraceToTriplet as TracerTraceToTriplet,
)
from .vocabulary import (
    is_model_call as is_model_call,
)
