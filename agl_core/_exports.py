"""Maps each public name to its module; :mod:`agl_core` imports the module on first use.

``agl_core/__init__.pyi`` holds the same names for type checkers.
"""

from __future__ import annotations

from typing import Final

_BY_MODULE: Final[dict[str, str]] = {
    "agl_core.adapter": "Adapter AdapterReport OtelTraceAdapter TraceAdapter TraceToTripletBase",
    "agl_core.agent": "FunctionalLitAgent LitAgent llm_rollout prompt_rollout rollout",
    "agl_core.algorithm": (
        "Algorithm FastAlgorithm FunctionalAlgorithm algo batch_iter_over_dataset"
        " with_llm_proxy with_store"
    ),
    "agl_core.emitter": (
        "emit_annotation emit_exception emit_message emit_object emit_reward find_final_reward"
        " find_reward_spans get_message_value get_object_value get_reward_value"
        " get_rewards_from_span is_reward_span now operation random reward"
    ),
    "agl_core.env": "LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var",
    "agl_core.execution": "ExecutionEvent ExecutionStrategy ThreadingEvent",
    "agl_core.plugins": "build_component",
    "agl_core.llm_server": "LLMServer",
    "agl_core.proxy": "LLMProxy",
    "agl_core.runner": "Hook Runner",
    "agl_core.store": "LightningStore LightningStoreCapabilities LightningStoreStatistics",
    "agl_core.tracer": "Tracer clear_active_tracer get_active_tracer set_active_tracer",
    "agl_core.trainer": "Trainer",
    "agl_core.types": (
        "Attempt AttemptStatus AttemptedRollout AttributeValue Attributes Dataset"
        " EnqueueRolloutRequest Event FilterField FilterOptions LLM Link NamedResources"
        " OtelResource PaginatedResult ParallelWorkerBase PromptTemplate ProxyLLM"
        " Resource ResourceUnion ResourcesUpdate Rollout RolloutConfig RolloutMode"
        " RolloutRawResult RolloutStatus SortOptions Span SpanContext SpanCoreFields"
        " SpanLike SpanRecordingContext StatusCode TaskInput TraceState TraceStatus"
        " Triplet Worker WorkerStatus register_resource_type"
    ),
}

HOMES: Final[dict[str, str]] = {
    name: module for module, names in _BY_MODULE.items() for name in names.split()
}
"""Module of each public name of the core."""
