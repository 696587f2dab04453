"""Calls with the arguments of 0.3: constructors, functions and the methods of a store."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agl_legacy
from agl_core.errors import ComponentTypeError, ConfigError
from agl_tracer_otel import OtelTracer
from tests.tables import check_each

URL = "http://127.0.0.1:4747"
RUNNER: dict[str, Any] = {"poll_interval": 5.0, "heartbeat_interval": 10.0, "interval_jitter": 0.5}
CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "InMemoryLightningStore": (
        [],
        {
            "thread_safe": True,
            "eviction_memory_threshold": 0.5,
            "safe_memory_threshold": 0.4,
            "span_size_estimator": lambda span: 10,
            "scan_debounce_seconds": 0.0,
        },
    ),
    "LightningStoreClient": (
        [URL],
        {
            "retry_delays": (1.0, 2.0),
            "health_retry_delays": (),
            "request_timeout": 3.0,
            "connection_timeout": 1.0,
        },
    ),
    "SharedMemoryExecutionStrategy": (
        [],
        {
            "n_runners": 1,
            "main_thread": "runner",
            "join_timeout": 1.0,
            "graceful_delay": 1.0,
            "poll_interval": 0.05,
            "managed_store": None,
        },
    ),
    "ClientServerExecutionStrategy": (
        [],
        {
            "role": "algorithm",
            "server_host": "localhost",
            "server_port": 4747,
            "n_runners": 2,
            "graceful_timeout": 1.0,
            "terminate_timeout": 1.0,
            "main_process": "algorithm",
            "managed_store": True,
            "allowed_exit_codes": (0, -15),
        },
    ),
    "Baseline": (
        [],
        {
            "n_epochs": 1,
            "train_split": 0.5,
            "polling_interval": 5.0,
            "max_queue_length": 4,
            "span_verbosity": "key_values",
        },
    ),
    "TracerTraceToTriplet": (
        [],
        {
            "repair_hierarchy": True,
            "llm_call_match": r"openai\.chat\.completion",
            "agent_match": "writer",
            "exclude_llm_call_in_reward": True,
            "reward_match": "first_occurrence",
            "_skip_empty_token_spans": True,
        },
    ),
    "APO": (
        [None],
        {"val_batch_size": 10, "gradient_batch_size": 4, "beam_width": 2, "_poml_trace": True},
    ),
    "LLMProxy": (
        [],
        {
            "port": 4000,
            "model_list": [{"model_name": "m", "litellm_params": {"model": "openai/m"}}],
            "store": None,
            "host": "127.0.0.1",
            "litellm_config": {},
            "num_retries": 1,
            "launch_mode": "asyncio",
            "launcher_args": None,
            "middlewares": ["rollout_attempt", "stream_conversion"],
            "callbacks": ["return_token_ids", "opentelemetry"],
        },
    ),
    "Trainer": (
        [],
        {
            "n_runners": 2,
            "max_rollouts": None,
            "initial_resources": None,
            "tracer": None,
            "adapter": {"agent_match": "writer"},
            "store": None,
            "runner": None,
            "strategy": "shm",
            "port": None,
            "algorithm": None,
            "llm_proxy": None,
            "hooks": [],
        },
    ),
    "LitAgentRunner": (
        [OtelTracer()],
        {"max_rollouts": 3, "heartbeat_launch_mode": "asyncio", "heartbeat_include_gpu": False}
        | RUNNER,
    ),
    "LitAgent": ([], {"trained_agents": None}),
    "RolloutConfig": (
        [],
        {
            "timeout_seconds": 1.0,
            "unresponsive_seconds": 1.0,
            "max_attempts": 2,
            "retry_condition": ["failed"],
        },
    ),
    "emit_reward": (
        [{"a": 1.0, "b": 2}],
        {"primary_key": "a", "attributes": {"x": 1}, "propagate": False},
    ),
    "emit_annotation": ([{"a": {"b": 1}}], {"propagate": False}),
    "emit_message": (["text"], {"attributes": {"k": 1}, "propagate": False}),
    "emit_object": ([[1]], {"attributes": {"k": 1}, "propagate": False}),
    "emit_exception": ([ValueError("x")], {"attributes": {"k": 1}, "propagate": False}),
}


@pytest.fixture(autouse=True)
def agl() -> Iterator[Any]:
    agl_legacy.install()
    import agentlightning  # pyright: ignore[reportMissingImports]

    yield agentlightning
    agl_legacy.uninstall()


def test_arguments_of_0_3_are_taken(agl: Any) -> None:
    def check(name: str, call: tuple[list[Any], dict[str, Any]]) -> None:
        arguments, options = call
        made = getattr(agl, name)(*arguments, **options)
        if isinstance(getattr(agl, name), type):
            assert isinstance(made, getattr(agl, name))

    check_each(check, CALLS.items())


def test_capabilities_have_every_key(agl: Any) -> None:
    known = {"thread_safe", "async_safe", "zero_copy", "otlp_traces"}
    store = agl.InMemoryLightningStore()
    assert known <= set(store.capabilities)
    assert store.capabilities["zero_copy"] is False
    assert known <= set(agl.LightningStoreClient(URL).capabilities)


@pytest.mark.parametrize("given", [URL, f"{URL}/", f"{URL}/v1/agl", f"{URL}/v1/agl/"])
def test_addresses_are_those_of_the_api_and_the_server(agl: Any, given: str) -> None:
    client = agl.LightningStoreClient(given)
    assert client.server_address == f"{URL}/v1/agl"
    assert client.server_address_root == URL
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", 4999)
    assert server.server_address == "http://127.0.0.1:4999/v1/agl"
    assert server.server_address_root == server.endpoint


def test_deprecated_arguments_of_the_trainer(agl: Any) -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated; use"):
        trainer = agl.Trainer(n_workers=3, max_tasks=2, daemon=True, strategy="shm")
    assert (trainer.n_runners, trainer.max_rollouts) == (3, 2)


def test_logging(agl: Any, tmp_path: Path) -> None:
    root = logging.getLogger("agl_core")
    before = (root.handlers[:], root.level, root.propagate)
    try:
        agl.setup_logging(
            "INFO",
            console=False,
            color=False,
            propagate=False,
            disable_existing_loggers=False,
            capture_warnings=False,
            submodule_levels={"agl_core.store": "WARNING"},
            extra_handlers=[logging.NullHandler()],
            formatter=logging.Formatter("%(message)s"),
            files=str(tmp_path / "log.txt"),
        )
        root.info("a line")
        assert (tmp_path / "log.txt").read_text() == "a line\n"
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:], root.level, root.propagate = before


STORE = {
    "start_rollout": "input mode resources_id config metadata worker_id",
    "enqueue_rollout": "input mode resources_id config metadata",
    "dequeue_rollout": "worker_id",
    "dequeue_many_rollouts": "limit worker_id",
    "start_attempt": "rollout_id worker_id",
    "query_rollouts": (
        "status_in rollout_id_in rollout_id_contains filter_logic sort_by sort_order limit offset"
        " status rollout_ids"
    ),
    "query_attempts": "rollout_id sort_by sort_order limit offset",
    "query_resources": ("resources_id resources_id_contains sort_by sort_order limit offset"),
    "query_spans": (
        "rollout_id attempt_id trace_id trace_id_contains span_id span_id_contains parent_id"
        " parent_id_contains name name_contains filter_logic limit offset sort_by sort_order"
    ),
    "query_workers": "status_in worker_id_contains filter_logic sort_by sort_order limit offset",
    "update_rollout": "rollout_id input mode resources_id status config metadata",
    "update_attempt": "rollout_id attempt_id status worker_id last_heartbeat_time metadata",
    "update_worker": "worker_id heartbeat_stats",
    "wait_for_rollouts": "rollout_ids timeout",
    "add_otel_span": "rollout_id attempt_id readable_span sequence_id",
}


def test_methods_of_a_store_have_the_parameters_of_0_3(agl: Any) -> None:
    def check(method: str, names: str) -> None:
        parameters = inspect.signature(getattr(agl.LightningStore, method)).parameters
        assert set(names.split()) <= set(parameters)

    check_each(check, STORE.items())


# -- build_component -------------------------------------------------------------------------------


class Base:
    def __init__(self, size: int = 1, tracer: Any = None) -> None:
        self.got = (size, tracer)


class Derived(Base): ...


def build(spec: object, **options: Any) -> Any:
    return agl_legacy.build_component(spec, expected_type=Base, spec_name="part", **options)


def test_the_forms_of_a_specification() -> None:
    here = f"{__name__}.Derived"
    ready = Base()
    assert build(ready) is ready
    assert build(None, allow_none=True) is None
    assert isinstance(build(None, default_factory=Derived), Derived)
    assert isinstance(build(Derived), Derived)
    assert isinstance(build(lambda: Derived()), Derived)
    assert isinstance(build(here), Derived)
    assert isinstance(build("d", registry={"d": here}), Derived)
    assert build({"type": here, "size": 2}).got == (2, None)
    assert build({"name": "d", "size": 3}, registry={"d": here}).got == (3, None)
    assert build({"size": 4}, dict_default_cls=Derived, dict_requires_type=False).got == (4, None)


def test_defaults_are_used_where_a_constructor_names_them() -> None:
    defaults = {"tracer": lambda: "t", "other": lambda: "o"}
    assert build(Derived, optional_defaults=defaults).got == (1, "t")
    assert build({"type": Derived, "tracer": "mine"}, optional_defaults=defaults).got == (1, "mine")
    assert build(lambda: Derived(5), optional_defaults=defaults).got == (5, None)


@pytest.mark.parametrize("spec", [None, 3, {"size": 1}])
def test_a_specification_that_is_not_valid_is_a_value_error(spec: object) -> None:
    with pytest.raises(ConfigError, match="part: ") as caught:
        build(spec)
    assert isinstance(caught.value, ValueError)


def test_a_wrong_result_is_a_type_error() -> None:
    with pytest.raises(ComponentTypeError, match="part: int is not a Base"):
        build(lambda: 3)


def test_a_store_in_mongodb_takes_the_name_of_0_3_for_its_address() -> None:
    mongo = pytest.importorskip("agl_store_mongo")
    store = mongo.MongoLightningStore(mongo_uri="mongodb://db.example:27018", database_name="x")
    assert store.host == "db.example:27018"
    with pytest.raises(ConfigError, match="mongo_client_kwargs"):
        mongo.MongoLightningStore(mongo_client_kwargs={})
