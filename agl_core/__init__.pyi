from .adapter import (
    Adapter as Adapter,
    AdapterReport as AdapterReport,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
    TraceToTripletBase as TraceToTripletBase,
)
from .agent import (
    FunctionalLitAgent as FunctionalLitAgent,
    LitAgent as LitAgent,
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from .algorithm import (
    Algorithm as Algorithm,
    FastAlgorithm as FastAlgorithm,
    FunctionalAlgorithm as FunctionalAlgorithm,
    algo as algo,
    batch_iter_over_dataset as batch_iter_over_dataset,
    with_llm_proxy as with_llm_proxy,
    with_store as with_store,
)
from .emitter import (
    emit_annotation as emit_annotation,
    emit_exception as emit_exception,
    emit_message as emit_message,
    emit_object as emit_object,
    emit_reward as emit_reward,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_message_value as get_message_value,
    get_object_value as get_object_value,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
    now as now,
    operation as operation,
    random as random,
    reward as reward,
)
from .env import (
    LightningEnvVar as LightningEnvVar,
    resolve_bool_env_var as resolve_bool_env_var,
    resolve_int_env_var as resolve_int_env_var,
    resolve_str_env_var as resolve_str_env_var,
)
from .execution import (
    ExecutionEvent as ExecutionEvent,
    ExecutionStrategy as ExecutionStrategy,
    ThreadingEvent as ThreadingEvent,
)
from .llm_server import LLMServer as LLMServer
from .plugins import build_component as build_component
from .proxy import LLMProxy as LLMProxy
from .runner import (
    Hook as Hook,
    Runner as Runner,
)
from .store import (
    LightningStore as LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
)
from .tracer import (
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .trainer import Trainer as Trainer
from .types import (
    LLM as LLM,
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Dataset as Dataset,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    Event as Event,
    FilterField as FilterField,
    FilterOptions as FilterOptions,
    Link as Link,
    NamedResources as NamedResources,
    OtelResource as OtelResource,
    PaginatedResult as PaginatedResult,
    ParallelWorkerBase as ParallelWorkerBase,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutMode as RolloutMode,
    RolloutRawResult as RolloutRawResult,
    RolloutStatus as RolloutStatus,
    SortOptions as SortOptions,
    Span as Span,
    SpanContext as SpanContext,
    SpanCoreFields as SpanCoreFields,
    SpanLike as SpanLike,
    SpanRecordingContext as SpanRecordingContext,
    StatusCode as StatusCode,
    TaskInput as TaskInput,
    TraceState as TraceState,
    TraceStatus as TraceStatus,
    Triplet as Triplet,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
    register_resource_type as register_resource_type,
)

__version__: str
