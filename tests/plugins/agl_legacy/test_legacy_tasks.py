"""Task server, client, task loader, runner and trainer of 0.1."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import agl_core as agl
from agl_adapters import TracerTraceToTriplet
from agl_algorithm_kit import Baseline
from agl_core.errors import ConfigError
from agl_core.types import LLM, Triplet
from agl_legacy import (
    AgentLightningClient,
    AgentLightningServer,
    DevTaskLoader,
    LegacyAgentRunner,
    Trainer,
)
from agl_legacy.task_queue import TaskQueue
from agl_legacy.types import RolloutLegacy, Task
from agl_tracer_otel import OtelTracer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PROMPT: dict[str, Any] = {"p": agl.PromptTemplate(template="{x}", engine="f-string")}


# -- the queue -------------------------------------------------------------------------------------


def test_a_task_is_handed_out_again_when_its_claim_is_too_old() -> None:
    now = 100.0
    queue = TaskQueue(timeout=10, now=lambda: now)
    first = queue.add("a", "train", None, {"k": 1})
    second = queue.add("b", None, "res-1", None)
    claimed = queue.claim()
    assert claimed is not None
    assert (claimed.rollout_id, claimed.input, claimed.mode, claimed.metadata) == (
        *(first, "a", "train"),
        {"k": 1},
    )
    assert (claimed.create_time, claimed.last_claim_time, claimed.num_claims) == (100.0, 100.0, 1)
    now = 110.0  # not older than the timeout
    assert [task and task.rollout_id for task in (queue.claim(), queue.claim())] == [second, None]
    now = 110.5
    again = queue.claim()
    assert again is not None
    assert (again.rollout_id, again.num_claims, again.last_claim_time) == (first, 2, 110.5)


def test_a_finished_task_is_not_handed_out_again() -> None:
    now = 0.0
    queue = TaskQueue(timeout=1, now=lambda: now)
    rollout_id = queue.add("a", None, None, None)
    queue.claim()
    now = 5.0
    queue.finish(RolloutLegacy(rollout_id=rollout_id, final_reward=0.5))
    assert queue.claim() is None
    assert queue.take("other") is None
    found = queue.take(rollout_id)
    assert found is not None
    assert found.final_reward == 0.5
    assert queue.take(rollout_id) is None


def test_a_released_task_is_the_next_one() -> None:
    queue = TaskQueue(timeout=1)
    ids = [queue.add(text, None, None, None) for text in "ab"]
    task = queue.claim()
    assert task is not None
    queue.release(task)
    claims = [queue.claim(), queue.claim()]
    assert [claim and claim.rollout_id for claim in claims] == ids


# -- server and client -----------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[AgentLightningServer]:
    started = AgentLightningServer(port=0, task_timeout_seconds=60)
    await started.start()
    yield started
    await started.stop()


def ask(url: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


async def test_the_routes_of_0_1(server: AgentLightningServer) -> None:
    def call(path: str, body: Any = None, method: str | None = None) -> Any:
        return asyncio.to_thread(ask, server.endpoint + path, body, method)

    assert await call("/task") == (200, {"is_available": False, "task": None})
    assert (await call("/resources/latest"))[0] == 404
    resources_id = await server.update_resources(PROMPT)
    assert resources_id.startswith("res-")
    status, update = await call("/resources/latest")
    assert (status, update["resources_id"], update["resources"]["p"]["template"]) == (
        *(200, resources_id),
        "{x}",
    )
    assert await call(f"/resources/{resources_id}") == (status, update)
    rollout_id = await server.queue_task({"x": 1}, "train")
    assert rollout_id.startswith("rollout-")
    status, answer = await call("/task")
    assert (answer["is_available"], answer["task"]["rollout_id"]) == (True, rollout_id)
    assert answer["task"]["input"] == {"x": 1}
    rollout = {"rollout_id": rollout_id, "final_reward": 1.0, "logs": ["a"], "unknown": 1}
    status, answer = await call("/rollout", rollout)
    assert (status, answer["status"]) == (200, "ok")
    assert [r.logs for r in await server.retrieve_completed_rollouts()] == [["a"]]
    assert await server.retrieve_completed_rollouts() == []
    assert (await call("/rollout", {"final_reward": 1.0}))[0] == 422
    assert (await call("/rollout"))[0] == 405
    assert (await call("/nothing"))[0] == 404
    await server.queue_task({"x": 2})
    assert (await call("/task?wait=soon"))[0] == 422
    assert (await call("/task"))[1]["is_available"]  # the refused call has not taken it


async def test_a_waiting_client_gets_a_task_at_once(server: AgentLightningServer) -> None:
    client = AgentLightningClient(server.endpoint, poll_interval=30, timeout=60)
    polling = asyncio.create_task(client.poll_next_task_async())
    await asyncio.sleep(0.2)
    assert not polling.done()
    rollout_id = await server.queue_task("now")
    task = await asyncio.wait_for(polling, 5)
    assert task is not None
    assert (task.rollout_id, client.task_count) == (rollout_id, 1)
    waiting = asyncio.create_task(server.poll_completed_rollout(rollout_id))
    await asyncio.sleep(0.1)
    posted = await client.post_rollout_async(RolloutLegacy(rollout_id=rollout_id, final_reward=2))
    assert posted is not None
    assert posted["status"] == "ok"
    finished = await asyncio.wait_for(waiting, 5)
    assert finished is not None
    assert finished.final_reward == 2
    assert await server.poll_completed_rollout(rollout_id, timeout=0.01) is None


async def test_a_client_that_leaves_while_it_waits_takes_no_task(
    server: AgentLightningServer,
) -> None:
    client = AgentLightningClient(server.endpoint, poll_interval=30, timeout=60)
    polling = asyncio.create_task(client.poll_next_task_async())
    await asyncio.sleep(0.2)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    rollout_id = await server.queue_task("for another")
    task = await asyncio.wait_for(client.poll_next_task_async(), 5)
    assert task is not None
    assert task.rollout_id == rollout_id


async def test_stopping_the_server_ends_the_calls_that_wait(server: AgentLightningServer) -> None:
    waiting = asyncio.create_task(asyncio.to_thread(ask, server.endpoint + "/task?wait=50"))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(server.stop(), 5)
    assert await asyncio.wait_for(waiting, 5) == (200, {"is_available": False, "task": None})


async def test_sync_methods_and_snapshots_asked_for_once(server: AgentLightningServer) -> None:
    resources_id = await server.update_resources(PROMPT)
    rollout_id = await server.queue_task("t")
    client = AgentLightningClient(server.endpoint)

    def work() -> Any:
        task = client.poll_next_task()
        found = client.get_resources_by_id(resources_id)
        latest = client.get_latest_resources()
        posted = client.post_rollout(RolloutLegacy(rollout_id=rollout_id))
        return task, found, latest, posted

    task, found, latest, posted = await asyncio.to_thread(work)
    assert (task.rollout_id, posted["status"]) == (rollout_id, "ok")
    assert found == latest
    endpoint = server.endpoint
    await server.stop()
    assert client.get_resources_by_id(resources_id) == found  # in a running loop, and from memory
    assert await client.get_latest_resources_async() is None
    assert await client.get_resources_by_id_async("res-other") is None
    assert await client.post_rollout_async(RolloutLegacy(rollout_id="r")) is None
    assert AgentLightningClient(endpoint + "/").endpoint == endpoint


async def test_a_sample_that_is_not_json_is_refused_when_it_is_queued(
    server: AgentLightningServer,
) -> None:
    with pytest.raises(ValueError, match="serialize"):
        await server.queue_task(object())


async def test_a_page_of_another_origin_gets_nothing(server: AgentLightningServer) -> None:
    request = urllib.request.Request(
        server.endpoint + "/task", headers={"Origin": "http://evil.example"}
    )
    with pytest.raises(HTTPError) as caught:
        await asyncio.to_thread(urllib.request.urlopen, request)
    caught.value.close()
    assert caught.value.code == 403


async def test_a_network_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"host: other machines could reach 0\.0\.0\.0"):
        AgentLightningServer(host="0.0.0.0")
    secret = "a-secret-of-this-test"
    server = AgentLightningServer(host="0.0.0.0", port=0, auth_token=secret)
    await server.start()
    try:
        await server.update_resources(PROMPT)
        client = AgentLightningClient(server.endpoint)
        assert await client.get_latest_resources_async() is None
        monkeypatch.setenv("AGL_AUTH_TOKEN", secret)
        assert await client.get_latest_resources_async() is not None
    finally:
        await server.stop()


# -- the task loader -------------------------------------------------------------------------------


def test_a_task_loader_serves_its_tasks_over_and_over() -> None:
    loader = DevTaskLoader(["a", "b"], resources=PROMPT)
    tasks = [loader.poll_next_task() for _ in range(3)]
    assert [task and (task.rollout_id, task.input, task.resources_id) for task in tasks] == [
        ("local_task_001", "a", "local"),
        ("local_task_002", "b", "local"),
        ("local_task_003", "a", "local"),
    ]
    assert loader.task_count == 3
    update = loader.get_latest_resources()
    assert update is not None
    assert update.resources == PROMPT
    assert loader.get_resources_by_id("local") == update
    with pytest.raises(ValueError, match="no resources 'other', only 'local'"):
        loader.get_resources_by_id("other")
    loader.post_rollout(RolloutLegacy(rollout_id="r"))
    assert [rollout.rollout_id for rollout in loader.rollouts] == ["r"]


def test_a_task_loader_serves_task_objects_as_they_are() -> None:
    task = Task(rollout_id="mine", input=1)
    assert DevTaskLoader([task], resources=PROMPT).poll_next_task() == task


@pytest.mark.parametrize("tasks", [[], ["a", Task(rollout_id="r", input=1)]])
def test_a_task_loader_refuses_no_tasks_and_mixed_ones(tasks: list[Any]) -> None:
    with pytest.raises(ValueError, match="DevTaskLoader"):
        DevTaskLoader(tasks, resources=PROMPT)


# -- runner and trainer ----------------------------------------------------------------------------


class Old(agl.LitAgent[Any]):
    """An agent with the signatures of 0.1."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result = result
        self.calls: list[Any] = []

    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.calls.append((task, rollout_id, sorted(resources)))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Both(agl.LitAgent[Any]):
    def training_rollout(self, task: Any, resources: Any, rollout: agl.Rollout) -> float:
        return 1.0

    def validation_rollout(self, task: Any, resources: Any, rollout: agl.Rollout) -> float:
        return 0.0 if rollout.mode == "train" else 0.5


def run(agent: agl.LitAgent[Any], *tasks: Task) -> list[RolloutLegacy]:
    loader = DevTaskLoader(list(tasks), resources={"llm": LLM(endpoint="http://x", model="m")})
    tracer = OtelTracer()
    adapter = TracerTraceToTriplet()
    runner = LegacyAgentRunner(agent, loader, tracer, adapter, 0, max_tasks=len(tasks))
    with tracer.lifespan():
        assert runner.iter() == len(tasks)
    return loader.rollouts


def task(mode: Any = "train") -> Task:
    return Task(rollout_id="r-1", input="question", mode=mode)


TRIPLETS = [Triplet(prompt="p", response="r", reward=0.25)]


@pytest.mark.parametrize(
    ("result", "reward", "triplets", "trace"),
    [
        (None, None, None, None),
        (0.5, 0.5, None, None),
        (1, 1.0, None, None),
        (TRIPLETS, 0.25, TRIPLETS, None),
        ([{"name": "span"}], None, None, [{"name": "span"}]),
        (RolloutLegacy(rollout_id="r-1", final_reward=3), 3.0, None, None),
        ([], None, None, None),
    ],
)
def test_what_an_agent_of_0_1_may_return(
    result: Any, reward: Any, triplets: Any, trace: Any
) -> None:
    agent = Old(result)
    (rollout,) = run(agent, task())
    assert agent.calls == [("question", "r-1", ["llm"])]
    assert (rollout.rollout_id, rollout.task) == ("r-1", task())
    assert (rollout.final_reward, rollout.triplets, rollout.trace) == (reward, triplets, trace)


@pytest.mark.parametrize("result", [RuntimeError("broken"), "a text", [1, "mixed"]])
def test_an_agent_that_fails_posts_its_error(result: Any) -> None:
    failed, again = run(Old(result), task(), task())
    assert failed.final_reward is None
    assert failed.metadata["error"].startswith(
        "RuntimeError" if isinstance(result, Exception) else "AgentResultError"
    )
    assert again.metadata == failed.metadata


async def test_a_result_that_is_not_json_fails_its_task_alone(server: AgentLightningServer) -> None:
    await server.update_resources(PROMPT)
    rollout_id = await server.queue_task("t", "train")
    agent = Old([Triplet(prompt={"token_ids": object()}, response="r", reward=1.0)])
    client, tracer = AgentLightningClient(server.endpoint), OtelTracer()
    runner = LegacyAgentRunner(agent, client, tracer, TracerTraceToTriplet(), 0, max_tasks=1)
    with tracer.lifespan():
        assert await runner.iter_async() == 1
    (rollout,) = await server.retrieve_completed_rollouts()
    assert (rollout.rollout_id, rollout.triplets) == (rollout_id, None)
    assert rollout.metadata["error"].startswith("PydanticSerializationError")


def test_the_mode_chooses_the_method() -> None:
    rewards = [r.final_reward for r in run(Both(), task("train"), task("val"), task(None))]
    assert rewards == [1.0, 0.5, 0.5]
    assert [r.final_reward for r in run(Old(0.75), task("val"))] == [0.75]  # as training, in 0.1


def test_spans_become_the_trace_and_the_triplets() -> None:
    @agl.rollout
    async def agent(task: Any, llm: LLM, rollout: agl.Rollout) -> None:
        async def call() -> None:
            tracer = agl.get_active_tracer()
            assert tracer is not None
            attributes = {"gen_ai.prompt.0.content": "q", "gen_ai.completion.0.content": "a"}
            tracer.create_span("openai.chat.completion", attributes)

        await call()
        agl.emit_reward(0.5)

    (rollout,) = run(agent, task())
    assert [span["name"] for span in rollout.trace or []] == [
        "openai.chat.completion",
        "agentlightning.annotation",
    ]
    assert [triplet.reward for triplet in rollout.triplets or []] == [0.5]
    assert rollout.final_reward == 0.5


def test_dev_needs_data() -> None:
    with pytest.raises(ConfigError, match="dev_data: dev=True needs it"):
        Trainer(dev=True).fit(Old(), "http://127.0.0.1:9")


def test_the_trainer_is_that_of_0_3_without_a_server() -> None:
    @agl.prompt_rollout
    def agent(task: str, prompt_template: agl.PromptTemplate) -> float:
        return 1.0

    trainer = Trainer(strategy="shm", initial_resources=PROMPT, algorithm=Baseline())
    assert isinstance(trainer, agl.Trainer)
    trainer.fit(agent, ["a"])
    rollouts = asyncio.run(trainer.store.query_rollouts())
    assert [rollout.status for rollout in rollouts] == ["succeeded"]


CRASH = """
import os, multiprocessing
import agentlightning as agl

class Crashes(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        os._exit(task)

if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    agl.Trainer(n_runners=2, max_rollouts=1).fit(Crashes(), {url!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_a_process_that_dies_fails_the_run(
    method: str, server: AgentLightningServer, tmp_path: Path
) -> None:
    await server.update_resources(PROMPT)
    await server.queue_task(3)
    script = tmp_path / "script.py"
    script.write_text(CRASH.format(method=method, url=server.endpoint))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agl_legacy", script), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b"ended with exit code 3; processes that go on: 1" not in (
            line := await process.stderr.readline()
        ):
            assert line
        await server.queue_task(0)
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 1
    assert "RunFailedError: processes failed: runner-" in errors
    assert "(exit code 3)" in errors
