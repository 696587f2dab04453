"""The public names of agent-lightning 0.3: where each one is in agl, or what to read about it.

``docs/migration.md`` holds the same tables for readers; a test compares them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HERE", "NOT_HERE", "PACKAGE", "PAGE", "VERSION", "section_of"]

PACKAGE: Final = "agentlightning"
VERSION: Final = "0.3.0"
"""The version whose interface is served."""
PAGE: Final = "docs/migration.md"

_ADAPTER = "Adapter OtelTraceAdapter TraceAdapter"
_PROXY_TRIPLET = "LlmProxyTraceToTriplet TraceToTripletBase TracerTraceToTriplet"
_DECORATORS = "llm_rollout prompt_rollout rollout"
_ANNOTATION = "emit_annotation operation"
_REWARD = (
    "emit_reward find_final_reward find_reward_spans get_reward_value get_rewards_from_span"
    " is_reward_span reward"
)
_EMITTER = (
    f"{_ANNOTATION} {_REWARD} emit_exception emit_message emit_object get_message_value"
    " get_object_value"
)
_ENV = "LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var"
_EVENTS = "ExecutionEvent MultiprocessingEvent ThreadingEvent"
_EXECUTION = (
    f"{_EVENTS} ClientServerExecutionStrategy ExecutionStrategy SharedMemoryExecutionStrategy"
)
_LOGGING = "configure_logger setup_logging setup_module_logging"
_STORE = "LightningStore LightningStoreCapabilities LightningStoreStatistics"
_STORES = (
    f"{_STORE} InMemoryLightningStore LightningStoreClient LightningStoreServer"
    " LightningStoreThreaded"
)
_ACTIVE_TRACER = "clear_active_tracer get_active_tracer set_active_tracer"
_TRACER = f"Tracer {_ACTIVE_TRACER}"
_TRACERS = f"{_TRACER} AgentOpsTracer DummyTracer OtelTracer"
_TYPES_CORE = (
    "Attempt AttemptStatus AttemptedRollout Dataset EnqueueRolloutRequest FilterField"
    " FilterOptions Hook PaginatedResult ParallelWorkerBase Rollout RolloutConfig"
    " RolloutMode RolloutRawResult RolloutStatus SortOptions"
    " TaskInput Triplet Worker WorkerStatus"
)
_TYPES_RESOURCES = (
    "LLM NamedResources PromptTemplate ProxyLLM Resource ResourceUnion ResourcesUpdate"
)
_TYPES_TRACER = (
    "AttributeValue Attributes Event Link OtelResource Span SpanContext"
    " SpanCoreFields SpanLike SpanRecordingContext StatusCode TraceState TraceStatus"
)
_TYPES = f"{_TYPES_CORE} {_TYPES_RESOURCES} {_TYPES_TRACER}"
_TASKS = "GenericResponse RolloutLegacy RolloutRawResultLegacy Task TaskIfAny"
_SPAN_ENUMS = "SpanAttributeNames SpanNames"
_SECOND_NAMES = (
    "AGL_ANNOTATION AGL_EXCEPTION AGL_MESSAGE AGL_OBJECT AGL_OPERATION AGL_REWARD AGL_VIRTUAL"
    " LightningResourceAttributes LightningSpanAttributes LinkAttributes RewardAttributes"
)
_OTEL = (
    "check_attributes_sanity extract_links_from_attributes extract_tags_from_attributes"
    " filter_and_unflatten_attributes filter_attributes flatten_attributes"
    " format_exception_attributes full_qualified_name"
    " make_link_attributes make_tag_attributes query_linked_spans sanitize_attribute_value"
    " sanitize_attributes unflatten_attributes"
)
_CLIENT = "AgentLightningClient DevTaskLoader"
_AGL = "agl_core"
_HERE: Final[dict[str, dict[str, str]]] = {
    "agentlightning": {
        _AGL: (
            f"{_ADAPTER} {_PROXY_TRIPLET} TraceToMessages APO Algorithm Baseline FastAlgorithm"
            f" VERL algo LLMProxy LitAgent {_DECORATORS} LitAgentRunner Runner"
            f" lightning_cli {_EMITTER} {_ENV} {_EXECUTION} {_LOGGING} {_STORES}"
            f" {_TRACERS} {_TYPES}"
        ),
        "agl_legacy": (
            f"{_CLIENT} AgentLightningServer LegacyAgentRunner Trainer build_component {_TASKS}"
            f" {_SPAN_ENUMS}"
        ),
    },
    "agentlightning.adapter": {_AGL: f"{_ADAPTER} {_PROXY_TRIPLET} TraceToMessages"},
    "agentlightning.adapter.base": {_AGL: _ADAPTER},
    "agentlightning.adapter.messages": {
        _AGL: "TraceToMessages",
        "agl_core.types": "OpenAIMessages",
    },
    "agentlightning.adapter.triplet": {
        _AGL: _PROXY_TRIPLET,
        "agl_adapters": "TraceTree",
        "agl_core.types": "RewardMatchPolicy",
    },
    "agentlightning.algorithm": {_AGL: "APO Algorithm Baseline FastAlgorithm VERL algo"},
    "agentlightning.algorithm.apo": {"agl_algo_apo": "APO"},
    "agentlightning.algorithm.apo.apo": {"agl_algo_apo": "APO"},
    "agentlightning.algorithm.base": {_AGL: "Algorithm"},
    "agentlightning.algorithm.decorator": {_AGL: "FunctionalAlgorithm algo"},
    "agentlightning.algorithm.fast": {_AGL: "Baseline FastAlgorithm"},
    "agentlightning.algorithm.utils": {_AGL: "batch_iter_over_dataset with_llm_proxy with_store"},
    "agentlightning.algorithm.verl": {"agl_algo_verl": "VERL"},
    "agentlightning.algorithm.verl.interface": {"agl_algo_verl": "VERL"},
    "agentlightning.client": {"agl_legacy": _CLIENT},
    "agentlightning.config": {_AGL: "lightning_cli"},
    "agentlightning.emitter": {_AGL: _EMITTER},
    "agentlightning.emitter.annotation": {
        _AGL: _ANNOTATION,
        "agl_core.emitter": "OperationContext",
    },
    "agentlightning.emitter.exception": {_AGL: "emit_exception"},
    "agentlightning.emitter.message": {_AGL: "emit_message get_message_value"},
    "agentlightning.emitter.object": {_AGL: "emit_object get_object_value"},
    "agentlightning.emitter.reward": {_AGL: _REWARD},
    "agentlightning.env_var": {_AGL: _ENV},
    "agentlightning.execution": {_AGL: _EXECUTION},
    "agentlightning.execution.base": {
        _AGL: "ExecutionStrategy",
        "agl_core.execution": "AlgorithmBundle RunnerBundle",
    },
    "agentlightning.execution.client_server": {_AGL: "ClientServerExecutionStrategy"},
    "agentlightning.execution.events": {_AGL: _EVENTS},
    "agentlightning.execution.shared_memory": {_AGL: "SharedMemoryExecutionStrategy"},
    "agentlightning.litagent": {_AGL: f"LitAgent {_DECORATORS}"},
    "agentlightning.litagent.decorator": {_AGL: f"FunctionalLitAgent {_DECORATORS}"},
    "agentlightning.litagent.litagent": {_AGL: "LitAgent"},
    "agentlightning.llm_proxy": {_AGL: "LLMProxy", "agl_core.types": "ModelConfig"},
    "agentlightning.logging": {_AGL: _LOGGING},
    "agentlightning.reward": {_AGL: _REWARD},
    "agentlightning.runner": {_AGL: "LitAgentRunner Runner", "agl_legacy": "LegacyAgentRunner"},
    "agentlightning.runner.agent": {_AGL: "LitAgentRunner"},
    "agentlightning.runner.base": {_AGL: "Runner"},
    "agentlightning.runner.legacy": {"agl_legacy": "LegacyAgentRunner"},
    "agentlightning.semconv": {
        "agl_core.semconv": "LinkPydanticModel RewardPydanticModel",
        "agl_legacy.semconv": _SECOND_NAMES,
    },
    "agentlightning.server": {"agl_legacy": "AgentLightningServer"},
    "agentlightning.store": {_AGL: _STORES},
    "agentlightning.store.base": {_AGL: _STORE, "agl_core.store": "UNSET Unset"},
    "agentlightning.store.client_server": {_AGL: "LightningStoreClient LightningStoreServer"},
    "agentlightning.store.memory": {_AGL: "InMemoryLightningStore"},
    "agentlightning.store.mongo": {"agl_store_mongo": "MongoLightningStore"},
    "agentlightning.store.threading": {_AGL: "LightningStoreThreaded"},
    "agentlightning.tracer": {_AGL: _TRACERS},
    "agentlightning.tracer.agentops": {"agl_tracer_agentops": "AgentOpsTracer"},
    "agentlightning.tracer.base": {_AGL: _TRACER},
    "agentlightning.tracer.dummy": {_AGL: "DummyTracer"},
    "agentlightning.tracer.otel": {_AGL: "OtelTracer"},
    "agentlightning.tracer.weave": {"agl_tracer_weave": "WeaveTracer"},
    "agentlightning.trainer": {"agl_legacy": "Trainer build_component"},
    "agentlightning.trainer.init_utils": {"agl_legacy": "build_component"},
    "agentlightning.trainer.trainer": {"agl_legacy": "Trainer"},
    "agentlightning.types": {_AGL: _TYPES, "agl_legacy": f"{_TASKS} {_SPAN_ENUMS}"},
    "agentlightning.types.core": {_AGL: _TYPES_CORE, "agl_legacy": _TASKS},
    "agentlightning.types.resources": {_AGL: _TYPES_RESOURCES},
    "agentlightning.types.tracer": {_AGL: _TYPES_TRACER, "agl_legacy": _SPAN_ENUMS},
    "agentlightning.utils": {},
    "agentlightning.utils.id": {"agl_core.ids": "generate_id"},
    "agentlightning.utils.otel": {
        "agl_core.otel": _OTEL,
        "agl_tracer_otel": "get_tracer get_tracer_provider",
    },
    "agentlightning.utils.otlp": {"agl_trace.otlp": "LightningStoreOTLPExporter"},
    "agentlightning.utils.server_launcher": {
        "agl_serving": "PythonServerLauncher PythonServerLauncherArgs"
    },
    "agentlightning.utils.system_snapshot": {"agl_runner": "system_snapshot"},
}

HERE: Final[dict[str, dict[str, str]]] = {
    module: {name: home for home, names in homes.items() for name in names.split()}
    for module, homes in _HERE.items()
}
"""Modules of 0.3 that are served; of each, its names and the module of agl that has them."""

NOT_HERE: Final[dict[str, dict[str, str]]] = {
    "the-parts-of-the-llm-proxy": {
        "agentlightning.llm_proxy": (
            "AddLogprobs AddReturnTokenIds LightningOpenTelemetry LightningSpanExporter"
            " MessageInspectionMiddleware RolloutAttemptMiddleware StreamConversionMiddleware"
            " get_active_llm_proxy initialize_llm_callbacks set_active_llm_proxy"
        ),
    },
    "the-collections-of-a-store": {
        "agentlightning": "CollectionBasedLightningStore",
        "agentlightning.store": "CollectionBasedLightningStore collection",
        "agentlightning.store.collection": (
            "AtomicLabels AtomicMode Collection DequeBasedQueue DictBasedKeyValue FilterOptions"
            " InMemoryLightningCollections KeyValue LightningCollections ListBasedCollection"
            " PaginatedResult Queue SortOptions"
        ),
        "agentlightning.store.collection.base": (
            "AtomicLabels AtomicMode Collection DuplicatedPrimaryKeyError FilterMap KeyValue"
            " LightningCollections Queue TrackedCollection ensure_numeric merge_must_filters"
            " normalize_filter_options resolve_error_type resolve_sort_options tracked"
        ),
        "agentlightning.store.collection.memory": (
            "DequeBasedQueue DictBasedKeyValue InMemoryLightningCollections ListBasedCollection"
            " ListBasedCollectionItemType MutationMode"
        ),
        "agentlightning.store.collection.mongo": (
            "MongoBasedCollection MongoBasedKeyValue MongoBasedQueue MongoClientPool"
            " MongoLightningCollections resolve_mongo_error_type"
        ),
        "agentlightning.store.collection_based": (
            "COLLECTION_STORE_ALL_METHODS COLLECTION_STORE_PUBLIC_METHODS"
            " CollectionBasedLightningStore get_current_store_methods healthcheck_before tracked"
        ),
    },
    "instrumentation": {
        "agentlightning.instrumentation": (
            "AGENTOPS_INSTALLED AGENTOPS_LANGCHAIN_INSTALLED LITELLM_INSTALLED VLLM_INSTALLED"
            " WEAVE_INSTALLED agentops agentops_langchain instrument_all litellm uninstrument_all"
            " vllm weave"
        ),
        "agentlightning.instrumentation.agentops": (
            "BypassableAuthenticatedOTLPExporter BypassableOTLPMetricExporter"
            " BypassableOTLPSpanExporter BypassableV3Client BypassableV4Client"
            " enable_agentops_service instrument_agentops uninstrument_agentops"
        ),
        "agentlightning.instrumentation.agentops_langchain": (
            "instrument_agentops_langchain langgraph_entry on_chain_start"
            " uninstrument_agentops_langchain"
        ),
        "agentlightning.instrumentation.litellm": (
            "instrument_litellm patched_set_attributes uninstrument_litellm"
        ),
        "agentlightning.instrumentation.vllm": (
            "ChatCompletionResponsePatched chat_completion_full_generator instrument_vllm"
            " uninstrument_vllm"
        ),
        "agentlightning.instrumentation.weave": (
            "InMemoryWeaveTraceServer get_entity_project_from_project_name_factory get_username"
            " init_weave_get_server_factory instrument_weave uninstrument_weave"
        ),
        "agentlightning.tracer.otel": "LightningSpanProcessor",
    },
    "metrics-backends": {
        "agentlightning.utils.metrics": (
            "ConsoleMetricsBackend LabelDict LabelKey MetricsBackend MultiMetricsBackend"
            " PrometheusMetricsBackend get_prometheus_registry setup_multiprocess_prometheus"
            " shutdown_metrics"
        ),
    },
    "modules-of-commands-and-of-verl": {
        "agentlightning": "cli verl",
        "agentlightning.cli": "main",
        "agentlightning.cli.prometheus": "create_prometheus_app ensure_prometheus_dir main",
        "agentlightning.cli.store": "main",
        "agentlightning.cli.vllm": "main",
        "agentlightning.execution": "inter_process",
        "agentlightning.execution.inter_process": "InterProcessExecutionStrategy",
        "agentlightning.trainer": "legacy registry",
        "agentlightning.trainer.init_utils": (
            "OptionalDefaults instantiate_component instantiate_from_spec load_class"
        ),
        "agentlightning.trainer.legacy": "TrainerLegacy",
        "agentlightning.trainer.registry": "ExecutionStrategyRegistry",
        "agentlightning.verl.async_server": "PatchedvLLMServer",
        "agentlightning.verl.daemon": (
            "AgentModeDaemon get_left_padded_ids_and_attention_mask"
            " get_right_padded_ids_and_attention_mask ids_startswith log_mismatch_detail"
        ),
        "agentlightning.verl.dataset": "AgentDataset LoadedDataset",
        "agentlightning.verl.entrypoint": "TaskRunner main run_ppo",
        "agentlightning.verl.trainer": "AgentLightningTrainer compute_data_metrics",
    },
    "helpers-and-names-of-types": {
        "agentlightning.adapter.messages": "convert_to_openai_messages group_genai_dict",
        "agentlightning.adapter.triplet": "Transition",
        "agentlightning.algorithm.apo.apo": (
            "APPLY_EDIT_PROMPT_FILES GRADIENT_PROMPT_FILES RolloutResultForAPO"
            " VersionedPromptTemplate"
        ),
        "agentlightning.algorithm.decorator": (
            "AlgorithmFunc AlgorithmFuncAsync AlgorithmFuncAsyncFallback AlgorithmFuncAsyncFull"
            " AlgorithmFuncAsyncLike AlgorithmFuncAsyncOnlyDataset AlgorithmFuncAsyncOnlyStore"
            " AlgorithmFuncSync AlgorithmFuncSyncFallback AlgorithmFuncSyncFull"
            " AlgorithmFuncSyncLike AlgorithmFuncSyncOnlyDataset AlgorithmFuncSyncOnlyStore"
            " AsyncFlag"
        ),
        "agentlightning.config": "CliConfigurable nullable_float nullable_int nullable_str",
        "agentlightning.emitter.object": "encode_object",
        "agentlightning.emitter.reward": "RewardDimension",
        "agentlightning.litagent.decorator": (
            "FunctionalLitAgentFunc LlmRolloutFunc LlmRolloutFuncAsync2 LlmRolloutFuncAsync3"
            " LlmRolloutFuncSync2 LlmRolloutFuncSync3 PromptRolloutFunc PromptRolloutFuncAsync2"
            " PromptRolloutFuncAsync3 PromptRolloutFuncSync2 PromptRolloutFuncSync3"
        ),
        "agentlightning.litagent.litagent": "is_v0_1_rollout_api",
        "agentlightning.logging": "DATE_FORMAT DEFAULT_FORMAT setup setup_module",
        "agentlightning.server": "ServerDataStore",
        "agentlightning.store": "sqlite utils",
        "agentlightning.store.base": "is_finished is_queuing is_running",
        "agentlightning.store.client_server": (
            "API_AGL_PREFIX API_V1_AGL_PREFIX API_V1_PREFIX CachedStaticFiles"
            " DequeueManyRolloutsRequest DequeueRolloutRequest EnqueueManyRolloutsRequest"
            " NextSequenceIdRequest NextSequenceIdResponse QueryAttemptsRequest"
            " QueryResourcesRequest QueryRolloutsRequest QuerySpansRequest QueryWorkersRequest"
            " RolloutRequest StartAttemptRequest UpdateAttemptRequest UpdateRolloutRequest"
            " UpdateWorkerRequest WaitForRolloutsRequest"
        ),
        "agentlightning.store.memory": "estimate_model_size",
        "agentlightning.store.utils": (
            "LATENCY_BUCKETS UpdateAttemptStatus UpdateRolloutStatus rollout_status_from_attempt"
            " scan_unhealthy_rollouts"
        ),
        "agentlightning.tracer.base": "with_active_tracer_context",
        "agentlightning.tracer.dummy": "DummySpanRecordingContext",
        "agentlightning.tracer.otel": (
            "OtelSpanRecordingContext STORE_WRITE_TIMEOUT_SECONDS to_otel_status_code"
        ),
        "agentlightning.tracer.weave": (
            "WeaveSpanRecordingContext WeaveTracerManagedTraceServer get_timestamp_or_throw"
            " op_name_to_func_name random_project_name"
        ),
        "agentlightning.trainer.trainer": "ComponentSpec",
        "agentlightning.types.tracer": "convert_timestamp extract_extra_fields",
        "agentlightning.utils.otel": "get_span_processors sanitize_list_attribute_sanity",
        "agentlightning.utils.otlp": "PROTOBUF_CT handle_otlp_export spans_from_proto",
        "agentlightning.utils.server_launcher": (
            "ChildEvent GunicornApp LaunchMode noop_context run_gunicorn run_uvicorn_asyncio"
            " run_uvicorn_subprocess run_uvicorn_thread shutdown_uvicorn_server"
        ),
    },
}
"""Names of 0.3 that are not served, by the section of the page that says what to use."""

_SECTIONS: Final[dict[str, str]] = {
    f"{module}.{name}": section
    for section, modules in NOT_HERE.items()
    for module, names in modules.items()
    for name in names.split()
} | {module: section for section, modules in NOT_HERE.items() for module in modules}

_OTHER_NAMES: Final = "every-public-name"


def section_of(name: str) -> str:
    """Return the section of the page about a name that is not served.

    Args:
        name: A module of 0.3, or a name in one: ``"agentlightning.verl"``.
    """
    while name not in HERE:
        if name in _SECTIONS:
            return _SECTIONS[name]
        name = name.rpartition(".")[0] or PACKAGE
    return _OTHER_NAMES
