"""Programs written for the interface of 0.3 run unchanged: one per tutorial and example of it."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from agl_scripted import Reply, ScriptedModels, SeenRequest, ToolCall
from agl_serving import probe_health
from agl_testing.ports import free_port

OutputOf = Callable[..., str]


def last_text(request: SeenRequest) -> str:
    return str(request.body["messages"][-1]["content"])


@pytest.mark.slow
def test_function_agents(output_of: OutputOf, models: ScriptedModels) -> None:
    models.script = lambda request: Reply("5" if last_text(request) == "3" else "4")
    assert output_of("function_agent.py").splitlines() == [
        "with_llm [1.0, 1.0, 1.0]",
        "without_reward [1.0, 1.0, 1.0]",
        "with_prompt [0.5, 0.0, 0.0]",
    ]
    assert [last_text(request) for request in models.requests] == ["2 + 2", "3", "V"] * 2


@pytest.mark.slow
def test_class_agents_and_worker_processes(output_of: OutputOf) -> None:
    assert output_of("class_agent.py", PORT=free_port()).splitlines() == [
        "train 1 succeeded 0.5",
        "train 2 succeeded 1.0",
        "val 3 succeeded -1.0",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["algorithm", "runner"])
def test_the_roles_of_a_program_in_two_terminals(start: Any, first: str) -> None:
    port = free_port()
    second = "runner" if first == "algorithm" else "algorithm"
    with socket.create_server(("127.0.0.1", port)) if first == "runner" else nullcontext() as door:
        started = {first: start("class_agent.py", PORT=port, AGL_CURRENT_ROLE=first)}
        if door is not None:  # wait until the runner has looked for its algorithm
            door.settimeout(60)
            door.accept()[0].close()
    started[second] = start("class_agent.py", PORT=port, AGL_CURRENT_ROLE=second)
    algorithm, runner = started["algorithm"], started["runner"]
    output, errors = algorithm.communicate(timeout=60)
    assert output.splitlines() == [
        "train 1 succeeded 0.5",
        "train 2 succeeded 1.0",
        "val 3 succeeded -1.0",
    ], errors
    output, errors = runner.communicate(timeout=60)
    assert (runner.returncode, output) == (0, ""), errors


@pytest.mark.slow
def test_an_algorithm_in_three_terminals(start: Any, models: ScriptedModels) -> None:
    models.script = lambda request: Reply("Mars" if "one word" in last_text(request) else "a b c d")
    port = free_port()
    store = start("store", "--port", str(port), module="agl_cli_kit")
    url = f"http://127.0.0.1:{port}"
    probe_health(f"{url}/v1/agl/health", time.monotonic() + 30)
    assert store.poll() is None
    runner = start("store_algorithm.py", "runner", "--store", url)
    algorithm = start("store_algorithm.py", "algorithm", "--store", url)
    output, errors = algorithm.communicate(timeout=60)
    assert output.splitlines() == [
        "[algorithm] 'Say it in one word: {task}': succeeded, reward 1.0",
        "[algorithm] 'Say it at length: {task}': succeeded, reward 0.25",
        "[algorithm] best: 'Say it in one word: {task}'",
    ], errors
    assert runner.communicate(timeout=60)[0] == "[runner] done\n"
    assert (algorithm.returncode, runner.returncode) == (0, 0)


def test_debugging_with_hooks(output_of: OutputOf) -> None:
    assert output_of("debug_hooks.py").splitlines() == [
        "succeeded ['rollout_start', 'trace_start', 'trace_end True', 'rollout_end']",
        "raised: no answer",
        "['succeeded'] You ask: Why?",
        "['fail']",
    ]


@pytest.mark.slow
def test_prompt_optimisation(output_of: OutputOf, models: ScriptedModels) -> None:
    pytest.importorskip("agl_algo_apo")

    def answer(request: SeenRequest) -> Reply:
        if request.body["model"] == "critic":
            return Reply("It does not ask for a room with enough seats.")
        if request.body["model"] == "editor":
            return Reply("Which room has enough seats for {people}?")
        first = str(request.body["messages"][0]["content"])
        if len(request.body["messages"]) == 1:
            return Reply(tool_calls=[ToolCall("list_rooms")])
        people = int("".join(filter(str.isdigit, first)))
        return Reply("Large" if "enough" in first and people > 2 else "Small")

    models.script = answer
    assert output_of("apo_rooms.py").splitlines()[-2:] == [
        "best: Which room has enough seats for {people}?",
        "latest: ['prompt_template']",
    ]


def test_the_llm_proxy(output_of: OutputOf, models: ScriptedModels) -> None:
    models.script = [Reply("Paris")]
    assert output_of("llm_proxy.py", PORT=free_port()).splitlines() == [
        *["Paris"] * 3,
        "3 [True, True, True]",
    ]


@pytest.mark.parametrize("where", ["memory", "server"])
def test_tracing_to_a_store(where: str, output_of: OutputOf) -> None:
    assert output_of("write_traces.py", where, PORT=free_port()).splitlines() == [
        "9 ['rank']",
        "0.5 succeeded",
    ]


def test_collecting_triplets_for_fine_tuning(output_of: OutputOf, models: ScriptedModels) -> None:
    models.script = [Reply("It is 42.")]
    assert output_of("collect_triplets.py", PORT=free_port()).splitlines() == [
        "['succeeded', 'succeeded'] [1.0, 1.0]",
        "True",
    ]


def test_the_command_line_of_a_program(output_of: OutputOf) -> None:
    words = ("--settings.name", "a", "--settings.shuffle", "no", "--settings.tag", "none")
    strategy = ("--sharedmemoryexecutionstrategy.main-thread", "algorithm")
    trainer = ("--trainer.n-runners", "2", "--trainer.max-rollouts", "none")
    runners = ("--sharedmemoryexecutionstrategy.n-runners", "3")
    assert output_of("command_line.py", *words, *strategy, *runners, *trainer).splitlines() == [
        "('a', 4, False, None) 3 2",
        "4800 False both",
    ]


@pytest.mark.slow
def test_the_server_and_a_client_of_0_1(start: Any, models: ScriptedModels) -> None:
    models.script = lambda request: Reply(
        "Ann" if request.body["messages"][0]["content"] == "Be brief." else "Ann Marie"
    )
    port = free_port()
    client = start("v01_client.py", "2", "0", PORT=port)  # before the server: it waits
    server = start("v01_server.py", PORT=port)
    output, errors = server.communicate(timeout=60)
    assert output.splitlines() == [
        "Be brief. 1.0 ['simulated'] 1",
        "Be kind. 0.5 ['simulated'] 1",
        "None",
    ], errors
    client.send_signal(signal.SIGINT)
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    *rewards, last = output.splitlines()
    assert last == "interrupted"
    assert sorted(line.split()[1] for line in rewards) == ["0.5", "0.5", "0.5", "0.5", "1.0"]


def test_tasks_of_a_dev_task_loader(output_of: OutputOf) -> None:
    assert output_of("dev_task_loader.py").splitlines() == [
        "local_task_001 0.75 ['3', 'done'] []",
        "local_task_002 None [] ['error']",
        "local_task_003 0.75 ['3', 'done'] []",
        "[5.0]",
    ]
