from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.errors import (
    AgentSignatureError,
)
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


async def test_not_initialised() -> None:
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    with pytest.raises(RuntimeError, match="has no worker: call init"):
        await runner.step({})
    with pytest.raises(RuntimeError, match="has no worker: call init"):
        await runner.iter()
    with pytest.raises(RuntimeError, match=r"call init\(agent\) before"):
        runner.init_worker(0, InMemoryLightningStore())
    with pytest.raises(RuntimeError, match=r"use iter\(\) or step\(\)"):
        runner.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rollouts": -1}, "LitAgentRunner.max_rollouts: should be greater than or equal to 0"),
        ({"heartbeat_launch_mode": "fork"}, "should be 'thread' or 'asyncio', not 'fork'"),
    ],
)
def test_bad_options(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LitAgentRunner(OtelTracer(), **options)


async def test_a_wrong_agent_is_refused_before_anything_runs(bench: Any) -> None:
    class Short(LitAgent[Any]):
        def rollout(self, task: Any) -> None: ...  # pyright: ignore

    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    with (
        pytest.raises(AgentSignatureError, match=r"Short\.rollout\(task"),
        runner.run_context(agent=Short(), store=bench.store),
    ):
        pytest.fail("the block must not run")


class _Recorder(LitAgentRunner[Any]):
    """Records its life cycle; ``broken`` names the call that fails."""

    def __init__(self, broken: str = "") -> None:
        super().__init__(OtelTracer())
        self.calls: list[Any] = []
        self.broken = broken

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name == self.broken:
            raise OSError(name)

    def init(self, agent: Any, **kwargs: Any) -> None:
        self._note("init")
        super().init(agent, **kwargs)

    def init_worker(self, worker_id: int, store: Any, **kwargs: Any) -> None:
        self._note("init_worker", worker_id)
        super().init_worker(worker_id, store, **kwargs)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        super().teardown_worker(worker_id)
        self._note("teardown_worker", worker_id)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        super().teardown()
        self._note("teardown")


async def _agent(bench: Any) -> Any:
    return (await bench.runner(lambda task: None))._agent


async def test_run_context_passes_the_worker_id(bench: Any) -> None:
    runner = _Recorder()
    with runner.run_context(agent=await _agent(bench), store=bench.store, worker_id=7) as same:
        assert same is runner
        await runner.step({})
        assert (await bench.attempt()).worker_id == "Worker-7"
    assert runner.calls == [("init",), ("init_worker", 7), ("teardown_worker", 7), ("teardown",)]
    assert runner.worker_id is None


async def test_run_context_tears_down_what_was_set_up(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await _agent(bench)
    runner = _Recorder()
    with pytest.raises(ZeroDivisionError), runner.run_context(agent=agent, store=bench.store):
        raise ZeroDivisionError
    assert [call[0] for call in runner.calls] == [
        "init", "init_worker", "teardown_worker", "teardown",
    ]  # fmt: skip

    for broken, expected in (
        ("init", ["init"]),
        ("init_worker", ["init", "init_worker", "teardown"]),
    ):
        runner = _Recorder(broken)
        with (
            pytest.raises(OSError, match=broken),
            runner.run_context(agent=agent, store=bench.store),
        ):
            pytest.fail("the block must not run")
        assert [call[0] for call in runner.calls] == expected

    for broken in ("teardown_worker", "teardown"):
        caplog.clear()
        runner = _Recorder(broken)
        with caplog.at_level(logging.ERROR), runner.run_context(agent=agent, store=bench.store):
            pass
        assert [call[0] for call in runner.calls][2:] == ["teardown_worker", "teardown"]
        assert "failed" in caplog.text


async def test_a_runner_can_be_set_up_again(bench: Any) -> None:
    agent = await _agent(bench)
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    for _ in range(2):
        with runner.run_context(agent=agent, store=bench.store):
            assert (await runner.step({})).status == "succeeded"


async def test_copies_are_workers_of_their_own(bench: Any) -> None:
    """An execution strategy copies the runner for several workers of one process."""
    base: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    base.init(await _agent(bench))
    workers = [copy.copy(base) for _ in range(3)]
    for i, worker in enumerate(workers):
        worker.init_worker(i, bench.store)
    rollouts = await asyncio.gather(*(worker.step({}) for worker in workers))
    ids = [(await bench.attempt(rollout.rollout_id)).worker_id for rollout in rollouts]
    assert ids == ["Worker-0", "Worker-1", "Worker-2"]
    for i, worker in enumerate(workers):
        worker.teardown_worker(i)
    base.teardown()
