"""Code written for version 0.3: what its users write works unchanged."""

from __future__ import annotations

import asyncio
import collections.abc
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import agl_core as agl
from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.errors import ConfigError, UnknownOptionError
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from agl_train import lightning_cli


@agl.rollout
def agent(task: int, prompt_template: agl.PromptTemplate) -> float:
    return 1.0


PROMPT: dict[str, Any] = {"prompt": agl.PromptTemplate(template="{q}", engine="f-string")}


def dev(agent: Any, **components: Any) -> tuple[agl.Trainer, list[Any]]:
    trainer = agl.Trainer(strategy="shm", initial_resources=PROMPT, **components)
    trainer.dev(agent, [1, 2])
    return trainer, list(asyncio.run(trainer.store.query_rollouts()))


# -- components ------------------------------------------------------------------------------------


class TwoMethods(agl.Tracer):
    """A tracer that only collects what its own libraries record."""

    @asynccontextmanager
    async def trace_context(
        self, name: str | None = None, **_: Any
    ) -> AsyncGenerator[agl.Tracer, None]:
        yield self

    def get_last_trace(self) -> list[agl.Span]:
        return []


class OwnSpans(TwoMethods):
    """A tracer with the four methods and the signatures of 0.3."""

    def init_worker(self, worker_id: int, store: agl.LightningStore | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().init_worker(worker_id, store)

    def teardown_worker(self, worker_id: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().teardown_worker(worker_id)

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: Any = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[agl.Tracer, None]:
        self.spans: list[agl.Span] = []
        agl.set_active_tracer(self)
        try:
            yield self
        finally:
            agl.clear_active_tracer()

    def get_last_trace(self) -> list[agl.Span]:
        return self.spans

    def create_span(
        self, name: str, attributes: Any = None, timestamp: Any = None, status: Any = None
    ) -> agl.SpanCoreFields:
        now = time.time()
        core = agl.SpanCoreFields(
            name=name,
            attributes=attributes or {},
            start_time=now,
            end_time=now,
            status=status or agl.TraceStatus(status_code="UNSET"),
        )
        self.spans.append(agl.Span.from_core_fields(core))
        return core


@pytest.mark.parametrize("tracer", [TwoMethods, OwnSpans])
def test_a_tracer_with_the_methods_of_0_3_is_a_tracer(tracer: type[agl.Tracer]) -> None:
    trainer, rollouts = dev(agent, tracer=tracer())
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 2
    spans = asyncio.run(trainer.store.query_spans(rollouts[0].rollout_id))
    assert agl.find_final_reward(spans.items) == 1.0


def test_what_agents_emit_reaches_a_tracer_of_0_3() -> None:
    @agl.rollout
    def chatty(task: int, prompt_template: agl.PromptTemplate) -> None:
        agl.emit_message("hello")

    tracer = OwnSpans()
    _, rollouts = dev(chatty, tracer=tracer)
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 2
    assert [span.name for span in tracer.spans] == [semconv.SPAN_MESSAGE]


def test_a_tracer_that_records_nothing_emitted_says_so() -> None:
    with pytest.raises(NotImplementedError, match="TwoMethods does not record what agents emit"):
        TwoMethods().create_span("x")


class OwnStrategy(agl.ExecutionStrategy):
    def __init__(self, n_runners: int, server_port: int | None = None, port: int = 0) -> None:
        self.n_runners = n_runners
        self.ports = (server_port, port)

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None: ...


class OwnRunner(agl.Runner[Any]):
    def __init__(self, tracer: agl.Tracer, store: Any = None, max_rollouts: int | None = None):
        self.got = (tracer, store, max_rollouts)

    async def iter(self, *, event: Any = None) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    async def step(self, input: Any, **_: Any) -> Any: ...


class SubRunner(LitAgentRunner[Any]):
    def __init__(self, tracer: agl.Tracer) -> None:
        super().__init__(tracer, poll_interval=1.0)


def test_component_classes_get_what_their_constructor_names() -> None:
    trainer = agl.Trainer(
        strategy=OwnStrategy, runner=OwnRunner, n_runners=3, port=4321, max_rollouts=7
    )
    assert isinstance(trainer.strategy, OwnStrategy)
    assert (trainer.n_runners, trainer.strategy.ports) == (3, (4321, 4321))
    assert isinstance(trainer.runner, OwnRunner)
    assert trainer.runner.got == (trainer.tracer, trainer.store, 7)


def test_options_of_the_user_win_over_what_is_supplied() -> None:
    trainer = agl.Trainer(strategy={"type": OwnStrategy, "n_runners": 2}, n_runners=3)
    assert trainer.n_runners == 2


def test_a_subclass_gets_only_what_its_own_constructor_names() -> None:
    trainer = agl.Trainer(strategy="shm", runner=SubRunner, max_rollouts=3)
    assert isinstance(trainer.runner, SubRunner)
    assert trainer.runner.get_tracer() is trainer.tracer


def test_a_runner_tells_what_it_works_with() -> None:
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    store = InMemoryLightningStore()
    assert runner.get_worker_id() == "Worker-Unknown"
    for ask in (runner.get_agent, runner.get_store):
        with pytest.raises(ValueError, match="the runner has no"):
            ask()
    with runner.run_context(agent=agent, store=store, worker_id=3):
        assert runner.get_agent() is agent
        assert runner.get_store() is store
        assert runner.get_worker_id() == "Worker-3"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: OtelTracer(nope=1), "OtelTracer.nope"),  # pyright: ignore[reportCallIssue]
        (lambda: agl.Trainer(strategy={"type": "shm", "nope": 1}), "strategy.nope"),
        (lambda: agl.Trainer(strategy={"type": OwnStrategy, "nope": 1}), "strategy.nope"),
    ],
)
def test_an_unknown_option_is_a_type_error_and_a_config_error(make: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        make()
    with pytest.raises(ConfigError, match=named):
        make()


def test_a_wrong_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="n_runners") as caught:
        SharedMemoryExecutionStrategy(n_runners="many")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert not isinstance(caught.value, UnknownOptionError)


@pytest.mark.parametrize("main_thread", ["runner", "algorithm"])
def test_a_keyboard_interrupt_inside_execute_ends_the_run(main_thread: Any) -> None:
    @agl.algo
    async def interrupted(*, store: Any, train_dataset: Any) -> None:
        raise KeyboardInterrupt

    strategy = SharedMemoryExecutionStrategy(main_thread=main_thread, graceful_delay=0.2)
    trainer = agl.Trainer(strategy=strategy, algorithm=interrupted)
    trainer.fit(agent, [1])
    assert trainer.interrupted


# -- data ------------------------------------------------------------------------------------------


def test_a_page_is_a_sequence() -> None:
    page: Any = agl.PaginatedResult(items=[1, 2, 3, 2], limit=-1, offset=0, total=4)
    assert isinstance(page, collections.abc.Sequence)
    assert 2 in page
    assert (page.index(2), page.count(2), list(reversed(page))) == (1, 2, [2, 3, 2, 1])


def test_any_object_with_the_attributes_of_a_span_can_be_added() -> None:
    context = SimpleNamespace(trace_id=1, span_id=2, is_remote=False)
    span: Any = SimpleNamespace(
        name="call",
        get_span_context=lambda: context,
        parent=None,
        status=SimpleNamespace(status_code=SimpleNamespace(name="OK"), description=None),
        attributes={"key": "value"},
        events=None,
        links=(),
        start_time=1_000_000_000,
        end_time=2_000_000_000,
        resource=SimpleNamespace(attributes={"service.name": "me"}, schema_url=""),
    )

    async def add() -> Any:
        store = InMemoryLightningStore()
        rollout = await store.start_rollout("task")
        return await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, span)

    stored = asyncio.run(add())
    assert (stored.name, stored.span_id, stored.start_time) == ("call", "0000000000000002", 1.0)
    assert stored.resource.attributes == {"service.name": "me"}


def test_spans_of_an_attempt_carry_its_ids_in_their_resource() -> None:
    async def run() -> Any:
        tracer, store = OtelTracer(), InMemoryLightningStore(thread_safe=True)
        rollout = await store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        with tracer.lifespan(store):
            async with tracer.trace_context("run", **ids):
                agl.emit_message("hello")
        return ids, (await store.query_spans(rollout.rollout_id))[0]

    ids, span = asyncio.run(run())
    assert span.resource.attributes[semconv.ROLLOUT_ID] == ids["rollout_id"]
    assert span.resource.attributes[semconv.ATTEMPT_ID] == ids["attempt_id"]


# -- emitters --------------------------------------------------------------------------------------


def test_emit_object_returns_what_it_wrote() -> None:
    written = agl.emit_object({"answer": 42}, propagate=False)
    assert written.name == semconv.SPAN_OBJECT
    assert written.attributes[semconv.OBJECT_JSON] == '{"answer": 42}'


@pytest.mark.parametrize("word", ["true", "True"])
def test_booleans_are_read_as_python_and_as_json_write_them(word: str) -> None:
    attributes = {semconv.OBJECT_TYPE: "bool", semconv.OBJECT_LITERAL: word}
    assert agl.get_object_value(agl.Span.from_attributes(attributes=attributes)) is True


def test_numeric_keys_do_not_turn_a_multimodal_payload_into_text() -> None:
    tracer = OtelTracer()
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "i.png"}}]

    @agl.operation
    def create(messages: Any, logit_bias: Any) -> Any:
        return {0: "zero"}

    async def run() -> None:
        async with tracer.trace_context("run"):
            create([{"role": "user", "content": parts}], {50256: -100})

    with tracer.lifespan():
        asyncio.run(run())
    (span,) = tracer.get_last_trace()
    given = semconv.OPERATION_INPUT
    assert span.attributes[f"{given}.messages.0.content.1.image_url.url"] == "i.png"
    assert span.attributes[f"{given}.logit_bias.50256"] == -100
    assert span.attributes[f"{semconv.OPERATION_OUTPUT}.0"] == "zero"


# -- adapters --------------------------------------------------------------------------------------


def call(**more: Any) -> agl.Span:
    attributes = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "hi",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "hello",
    }
    return agl.Span.from_attributes(
        attributes=attributes | more,
        name="openai.chat.completion",
        sequence_id=1,
        start_time=1.0,
        end_time=2.0,
    )


def test_azure_writes_filter_results_beside_the_messages() -> None:
    span = call(**{"gen_ai.prompt.prompt_filter_results": "[]"})
    (conversation,) = TraceToMessages().adapt([span])
    assert [message["content"] for message in conversation["messages"]] == ["hi", "hello"]
    (triplet,) = TracerTraceToTriplet().adapt([span])
    assert triplet.prompt["raw_content"] == [{"role": "user", "content": "hi"}]


def test_image_parts_are_found_when_attributes_between_them_were_dropped() -> None:
    parts = {
        "gen_ai.prompt.0.content.0.type": "text",
        "gen_ai.prompt.0.content.0.text": "?",
        "gen_ai.prompt.0.content.2.type": "image_url",
        "gen_ai.prompt.0.content.2.image_url.url": "i.png",
    }
    span = call(**parts)
    del span.attributes["gen_ai.prompt.0.content"]
    (triplet,) = TracerTraceToTriplet().adapt([span])
    assert triplet.prompt["image_urls"] == ["i.png"]
    (conversation,) = TraceToMessages().adapt([span])
    assert [part["type"] for part in conversation["messages"][0]["content"]] == [
        "text",
        "image_url",
    ]


def test_the_parameters_of_an_adapter_are_attributes_and_may_be_set() -> None:
    adapter = TracerTraceToTriplet(agent_match="writer")
    assert adapter.agent_match == "writer"
    assert adapter.llm_call_match is None  # every call that a dialect knows
    assert adapter.exclude_llm_call_in_reward is True
    assert adapter.adapt([call()]) == []
    adapter.agent_match = None
    assert len(adapter.adapt([call()])) == 1


# -- command line ----------------------------------------------------------------------------------


def test_lightning_cli_gives_none_for_optional_parameters_without_a_default() -> None:
    class Job:
        def __init__(self, name: str | None, sizes: list[int] | None, steps: int = 3) -> None:
            self.got = (name, sizes, steps)

    assert lightning_cli(Job, args=[]).got == (None, None, 3)
    words = ["--job.name", "a", "--job.sizes", "1", "2"]
    assert lightning_cli(Job, args=words).got == ("a", [1, 2], 3)
