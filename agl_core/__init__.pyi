"""Names that :mod:`agl_core._exports` resolves at run time, for type checkers."""

from typing import Any

from agl_core.adapter import (
    Adapter,
    AdapterReport,
    OtelTraceAdapter,
    TraceAdapter,
    TraceToTripletBase,
)
from agl_core.agent import (
    FunctionalLitAgent,
    LitAgent,
    llm_rollout,
    prompt_rollout,
    rollout,
)
from agl_core.algorithm import (
    Algorithm,
    Baseline,
    FastAlgorithm,
    FunctionalAlgorithm,
    algo,
    batch_iter_over_dataset,
    with_llm_proxy,
    with_store,
)
from agl_core.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    now,
    operation,
    random,
    reward,
)
from agl_core.env import (
    LightningEnvVar,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from agl_core.execution import (
    ExecutionEvent,
    ExecutionStrategy,
    SharedMemoryExecutionStrategy,
    ThreadingEvent,
)
from agl_core.llm_server import LLMServer
from agl_core.logs import (
    configure_logger,
    setup_logging,
    setup_module_logging,
)
from agl_core.plugins import (
    build_component,
)
from agl_core.proxy import LLMProxy
from agl_core.runner import (
    Hook,
    LitAgentRunner,
    Runner,
)
from agl_core.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    LightningStoreThreaded,
)
from agl_core.tracer import (
    DummyTracer,
    OtelTracer,
    Tracer,
    clear_active_tracer,
    get_active_tracer,
    set_active_tracer,
)
from agl_core.trainer import (
    Trainer,
)
from agl_core.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Attributes,
    AttributeValue,
    Dataset,
    EnqueueRolloutRequest,
    Event,
    FilterField,
    FilterOptions,
    Link,
    NamedResources,
    OtelResource,
    PaginatedResult,
    ParallelWorkerBase,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    ResourceUnion,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutRawResult,
    RolloutStatus,
    SortOptions,
    Span,
    SpanContext,
    SpanCoreFields,
    SpanLike,
    SpanRecordingContext,
    StatusCode,
    TaskInput,
    TraceState,
    TraceStatus,
    Triplet,
    Worker,
    WorkerStatus,
    register_resource_type,
)

ClientServerExecutionStrategy: Any
DirectProxy: Any
MultiprocessingEvent: Any
LightningStoreClient: Any
LightningStoreServer: Any
LlmProxyTraceToTriplet: Any
TraceToMessages: Any
TracerTraceToTriplet: Any
lightning_cli: Any
__version__: str

# From plugins: their own packages have them with their types.
APO: Any
VERL: Any
AgentOpsTracer: Any
WeaveTracer: Any
MongoLightningStore: Any

__all__ = [
    "LLM",
    "Adapter",
    "AdapterReport",
    "Algorithm",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Baseline",
    "Dataset",
    "DummyTracer",
    "EnqueueRolloutRequest",
    "Event",
    "ExecutionEvent",
    "ExecutionStrategy",
    "FastAlgorithm",
    "FilterField",
    "FilterOptions",
    "FunctionalAlgorithm",
    "FunctionalLitAgent",
    "Hook",
    "InMemoryLightningStore",
    "LLMProxy",
    "LLMServer",
    "LightningEnvVar",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Link",
    "LitAgent",
    "LitAgentRunner",
    "NamedResources",
    "OtelResource",
    "OtelTraceAdapter",
    "OtelTracer",
    "PaginatedResult",
    "ParallelWorkerBase",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "Runner",
    "SharedMemoryExecutionStrategy",
    "SortOptions",
    "Span",
    "SpanContext",
    "SpanCoreFields",
    "SpanLike",
    "SpanRecordingContext",
    "StatusCode",
    "TaskInput",
    "ThreadingEvent",
    "TraceAdapter",
    "TraceState",
    "TraceStatus",
    "TraceToTripletBase",
    "Tracer",
    "Trainer",
    "Triplet",
    "Worker",
    "WorkerStatus",
    "algo",
    "batch_iter_over_dataset",
    "build_component",
    "clear_active_tracer",
    "configure_logger",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_active_tracer",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "llm_rollout",
    "now",
    "operation",
    "prompt_rollout",
    "random",
    "register_resource_type",
    "resolve_bool_env_var",
    "resolve_int_env_var",
    "resolve_str_env_var",
    "reward",
    "rollout",
    "set_active_tracer",
    "setup_logging",
    "setup_module_logging",
    "with_llm_proxy",
    "with_store",
]
