"""The agent with a real MCP server, run by ``agl`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agl_core import LLM
from agl_scripted import Reply, ScriptedModels, ToolCall

pytestmark = pytest.mark.heavy

EXAMPLE = Path(__file__).parents[3] / "examples" / "calc_agent"


@pytest.fixture(scope="module")
def calculator() -> Iterator[Any]:
    from calc_tools import Calculator

    with Calculator() as calculator:
        yield calculator


def test_the_server_describes_the_parameters_of_its_tool(calculator):
    (tool,) = calculator.definitions()
    assert tool["function"]["name"] == "calculate"
    assert "arithmetic" in tool["function"]["description"]
    assert tool["function"]["parameters"]["required"] == ["expression"]


def test_calls_and_their_errors(calculator):
    def call(arguments: Any) -> str:
        return calculator.call("calculate", json.dumps(arguments))

    assert call({"expression": "6*7"}) == "42"
    assert "division by zero" in call({"expression": "1/0"})
    assert call({"expression": "1/0"}).startswith("error: ")
    assert call({"sum": "1"}).startswith("error: ")
    assert call([1]) == "error: the arguments are not a JSON object"
    assert calculator.call("calculate", "{") == "error: the arguments are not JSON"
    assert calculator.call("sing", "{}").startswith("error: ")


def test_many_threads_call_one_server(calculator):
    def square(number: int) -> str:
        return calculator.call("calculate", json.dumps({"expression": f"{number}**2"}))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(square, range(200))) == [str(n * n) for n in range(200)]


def test_the_loop_tells_the_model_what_went_wrong(calculator):
    from calc_agent import solve

    script = [
        Reply(tool_calls=[ToolCall("calculate", {"expression": "1/0"})]),
        Reply(tool_calls=[ToolCall("calculate", {"expression": "1/2"})]),
        Reply("Answer: 0.5"),
    ]
    with ScriptedModels(script) as models:
        llm = LLM(endpoint=models.base_url, model="scripted", sampling_parameters={"top_p": 0.5})
        assert solve_outside_a_trace(solve, llm, calculator) == "Answer: 0.5"
        bodies = [request.body for request in models.requests]
    assert [m["role"] for m in bodies[2]["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert bodies[2]["messages"][3]["content"].startswith("error: ")
    assert bodies[2]["messages"][5]["content"] == "0.5"
    assert {body["top_p"] for body in bodies} == {0.5}


def solve_outside_a_trace(solve: Any, llm: LLM, calculator: Any) -> str:
    import asyncio

    from agl_tracer_otel import OtelTracer

    async def run() -> str:
        tracer = OtelTracer()
        with tracer.lifespan():
            async with tracer.trace_context():
                return await asyncio.to_thread(solve, "Half of one?", llm, calculator)

    return asyncio.run(run())


def test_a_model_that_never_answers_ends(calculator):
    from calc_agent import solve

    with ScriptedModels([Reply(tool_calls=[ToolCall("calculate", {"expression": "1"})])]) as models:
        llm = LLM(endpoint=models.base_url, model="scripted")
        assert solve_outside_a_trace(solve, llm, calculator) == ""
        assert len(models.requests) == 6


def agl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}
    return subprocess.run(
        [sys.executable, "-m", "agl_cli_kit", *arguments],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key not in hidden},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_it_is_measured_traced_and_exported(tmp_path):
    store = ["--set", "store.type=sqlite", "--set", f"store.path={tmp_path / 'agl.db'}"]
    done = agl(tmp_path, "eval", str(EXAMPLE / "train.toml"), "--json", *store)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert metrics["succeeded"] == metrics["tasks"] == 32
    assert 0.5 < metrics["mean"] < 0.9
    assert done.stderr.count("SIMULATED") == 1

    done = agl(tmp_path, "trace", "latest", "--json")
    spans = json.loads(done.stdout)["spans"]
    assert sum(span["kind"] == "model" for span in spans) >= 1
    assert any("tools/list" in span["name"] for span in spans)  # spans of the MCP library itself

    done = agl(tmp_path, "export", "sft", "solved.jsonl", "--min-reward", "1")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "solved.jsonl").read_text().splitlines()]
    assert len(rows) == round(metrics["mean"] * 32)
    assert rows[0]["tools"][0]["function"]["name"] == "calculate"


def test_it_is_run_by_the_baseline(tmp_path):
    done = agl(tmp_path, "train", str(EXAMPLE / "train.toml"), "--json", "--set", "store=memory")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout.splitlines()[-1])["metrics"]
    assert metrics["succeeded"] == metrics["rollouts"] == 64 + 32
    assert 0.5 < metrics["reward"] < 0.9
