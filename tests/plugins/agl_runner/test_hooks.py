from __future__ import annotations

from typing import Any

import pytest

from agl_core import semconv
from agl_core.emitter import emit_reward, find_final_reward, get_reward_value
from agl_core.plugins import add_listener, flush_listeners, hookimpl, remove_listener
from agl_core.runner import Hook
from agl_core.tracer import get_active_tracer
from agl_core.types import RolloutConfig

ORDER = ["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]


class Recorder(Hook):
    def __init__(self, log: list[Any] | None = None, name: str = "") -> None:
        self.log: list[Any] = [] if log is None else log
        self.name = name
        self.arguments: dict[str, dict[str, Any]] = {}

    def _note(self, callback: str, arguments: dict[str, Any]) -> None:
        self.log.append(f"{self.name}{callback}")
        self.arguments[callback] = arguments

    async def on_rollout_start(self, **arguments: Any) -> None:
        self._note("on_rollout_start", arguments)

    async def on_trace_start(self, **arguments: Any) -> None:
        self._note("on_trace_start", arguments)
        assert get_active_tracer() is arguments["tracer"]

    async def on_trace_end(self, **arguments: Any) -> None:
        self._note("on_trace_end", arguments)
        assert get_active_tracer() is arguments["tracer"]

    async def on_rollout_end(self, **arguments: Any) -> None:
        self._note("on_rollout_end", arguments)


async def test_order_and_arguments(bench: Any) -> None:
    hook = Recorder()
    log = hook.log
    runner = await bench.runner(lambda task: log.append("agent"), hooks=[hook])
    finished = await runner.step({"q": 1})
    assert log == [*ORDER[:2], "agent", *ORDER[2:]]
    common = {"agent", "runner", "rollout"}
    assert {name: set(given) for name, given in hook.arguments.items()} == {
        "on_rollout_start": common,
        "on_trace_start": common | {"tracer"},
        "on_trace_end": common | {"tracer", "error"},
        "on_rollout_end": common | {"spans"},
    }
    for given in hook.arguments.values():
        assert given["rollout"].rollout_id == finished.rollout_id
        assert given["runner"] is runner
        assert given["agent"] is runner._agent
    assert hook.arguments["on_trace_end"]["error"] is None


async def test_several_hooks_in_their_order(bench: Any) -> None:
    log: list[str] = []
    hooks = [Recorder(log, "a."), Hook(), Recorder(log, "b.")]
    await (await bench.runner(lambda task: None, hooks=hooks)).step({})
    assert log == [f"{name}{callback}" for callback in ORDER for name in ("a.", "b.")]


async def test_rollout_end_comes_before_the_final_status(bench: Any) -> None:
    seen: list[str] = []

    class Looks(Hook):
        async def on_rollout_end(self, **_: Any) -> None:
            seen.append((await bench.attempt()).status)

    await (await bench.runner(lambda task: 1.0, hooks=[Looks()])).step({})
    assert seen == ["running"]


async def test_rollout_end_sees_every_span_and_the_returned_reward(bench: Any) -> None:
    hook = Recorder()

    def agent(task: Any) -> float:
        emit_reward(0.25)
        return 0.75

    rollout = await (await bench.runner(agent, hooks=[hook])).step({})
    spans = hook.arguments["on_rollout_end"]["spans"]
    assert [get_reward_value(span) for span in spans] == [0.25, 0.75]
    assert find_final_reward(spans) == 0.75
    assert list(spans) == list(await bench.store.query_spans(rollout.rollout_id))


async def test_an_agents_error_reaches_the_hooks(bench: Any) -> None:
    class WithoutError(Recorder):
        async def on_trace_end(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, *, agent: Any, runner: Any, tracer: Any, rollout: Any
        ) -> None:
            self._note("on_trace_end", {})

    hook, old = Recorder(), WithoutError()
    error = LookupError("x")

    def agent(task: Any) -> None:
        emit_reward(0.5)
        raise error

    runner = await bench.runner(agent, hooks=[hook, old])
    with pytest.raises(LookupError) as caught:
        await runner.step({})
    assert caught.value is error
    assert hook.log == old.log == ORDER
    assert hook.arguments["on_trace_end"]["error"] is error
    assert len(hook.arguments["on_rollout_end"]["spans"]) == 1


async def test_without_resources_start_and_end_still_pair(bench: Any) -> None:
    hook = Recorder()
    runner = await bench.runner(lambda task: None, hooks=[hook])
    await bench.store.enqueue_rollout({}, resources_id="rs-none")
    await runner.iter(until_idle=True)
    assert hook.log == ["on_rollout_start", "on_rollout_end"]
    assert hook.arguments["on_rollout_end"]["spans"] == []


@pytest.mark.parametrize("broken", ORDER)
async def test_a_hook_that_raises_is_contained(
    bench: Any, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Hook):
        pass

    async def fail(self: Any, **_: Any) -> None:
        raise OSError(f"{broken} is broken")

    setattr(Broken, broken, fail)
    hook = Recorder()
    runner = await bench.runner(lambda task: 1.0, hooks=[Broken(), hook])
    rollout = await runner.step({})
    assert rollout.status == "succeeded"
    assert hook.log == ORDER
    assert f"{broken} is broken" in caplog.text


async def test_hooks_may_change_resources_before_they_are_read(bench: Any) -> None:
    from agl_core.types import LLM

    class Provides(Hook):
        async def on_rollout_start(self, **_: Any) -> None:
            await bench.store.add_resources({"m": LLM(endpoint="http://late", model="late")})

    seen: list[Any] = []
    runner = await bench.runner(lambda task: None, hooks=[Provides()])
    runner._agent.rollout = lambda task, resources, rollout: seen.append(resources)
    rollout = await bench.store.enqueue_rollout({})
    await bench.store.update_rollout(rollout.rollout_id, resources_id=None)
    await runner.iter(until_idle=True)
    assert seen[0]["m"].model == "late"


# -- life-cycle events ---------------------------------------------------------------------------


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    @hookimpl
    def rollout_started(self, rollout: Any, worker_id: Any) -> None:
        self.events.append(("rollout_started", {"worker_id": worker_id}))

    @hookimpl
    def attempt_started(self, rollout: Any) -> None:
        self.events.append(("attempt_started", {"sequence_id": rollout.attempt.sequence_id}))

    @hookimpl
    def trace_finished(self, spans: Any) -> None:
        self.events.append(("trace_finished", {"spans": [span.name for span in spans]}))

    @hookimpl
    def attempt_finished(self, status: Any, reward: Any, duration: Any, error: Any) -> None:
        assert duration >= 0
        self.events.append(
            ("attempt_finished", {"status": status, "reward": reward, "error": error})
        )

    @hookimpl
    def rollout_finished(self, rollout: Any, worker_id: Any) -> None:
        self.events.append(("rollout_finished", {"status": rollout.status, "worker": worker_id}))


@pytest.fixture
def listener() -> Any:
    listener = Listener()
    name = add_listener(listener)
    yield listener
    remove_listener(name)


async def test_listeners_get_the_events_of_a_rollout_and_its_retry(
    bench: Any, listener: Listener
) -> None:
    error = ValueError("once")
    errors = [error]

    def agent(task: Any) -> float:
        if errors:
            raise errors.pop()
        return 0.5

    runner = await bench.runner(agent)
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await bench.store.enqueue_rollout({}, config=config)
    await runner.iter(until_idle=True)
    flush_listeners()
    assert listener.events == [
        ("rollout_started", {"worker_id": "Worker-0"}),
        ("attempt_started", {"sequence_id": 1}),
        ("trace_finished", {"spans": []}),
        ("attempt_finished", {"status": "failed", "reward": None, "error": error}),
        ("attempt_started", {"sequence_id": 2}),
        ("trace_finished", {"spans": [semconv.SPAN_ANNOTATION]}),
        ("attempt_finished", {"status": "succeeded", "reward": 0.5, "error": None}),
        ("rollout_finished", {"status": "succeeded", "worker": "Worker-0"}),
    ]


async def test_listeners_get_the_events_of_steps(bench: Any, listener: Listener) -> None:
    await (await bench.runner(lambda task: None)).step({})
    flush_listeners()
    assert [name for name, _ in listener.events] == [
        "rollout_started",
        "attempt_started",
        "trace_finished",
        "attempt_finished",
        "rollout_finished",
    ]


async def test_a_store_that_is_away_at_the_end_is_logged(
    bench: Any, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    from agl_store_memory import InMemoryLightningStore

    class Away(InMemoryLightningStore):
        async def get_rollout_by_id(self, rollout_id: str) -> Any:
            raise OSError("away")

    bench.store = Away()
    runner = await bench.runner(lambda task: None)
    await bench.store.enqueue_rollout({})
    await runner.iter(until_idle=True)
    flush_listeners()
    assert listener.events[-1][0] == "attempt_finished"
    assert "its end is not reported to listeners" in caplog.text
    assert await bench.statuses() == ["succeeded"]
