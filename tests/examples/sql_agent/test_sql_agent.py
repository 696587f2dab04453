"""The graph with a real model server, run by ``agl`` as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agl_core import LLM
from agl_scripted import Reply, ScriptedModels
from agl_tracer_otel import OtelTracer

pytestmark = pytest.mark.heavy

EXAMPLE = Path(__file__).parents[3] / "examples" / "sql_agent"
TASK = {
    "database": "shop",
    "question": "How many customers are there?",
    "sql": "SELECT COUNT(*) FROM customers",
}


def answer(models: ScriptedModels, **sampling: Any) -> float:
    """Run the agent on one task inside a trace."""
    from sql_agent import answer_question

    llm = LLM(endpoint=models.base_url, model="scripted", sampling_parameters=sampling)

    async def run() -> float:
        tracer = OtelTracer()
        with tracer.lifespan():
            async with tracer.trace_context():
                return await asyncio.to_thread(answer_question, TASK, llm)

    return asyncio.run(run())


def test_a_right_query_at_once():
    with ScriptedModels([Reply("```sql\nSELECT COUNT(id) FROM customers\n```")]) as models:
        assert answer(models, temperature=0.5) == 1.0
        (request,) = models.requests
    assert request.body["temperature"] == 0.5
    assert [m["role"] for m in request.body["messages"]] == ["system", "user"]
    assert "CREATE TABLE customers" in request.body["messages"][1]["content"]


def test_the_model_corrects_a_query_after_an_error():
    script = [Reply("```sql\nSELECT COUNT(x) FROM customers\n```"), Reply("SELECT 12")]
    with ScriptedModels(script) as models:
        assert answer(models) == 1.0
        messages = models.requests[1].body["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert "no such column: x" in messages[3]["content"]


def test_it_gives_up_after_three_tries():
    with ScriptedModels([Reply("I do not know.")]) as models:
        assert answer(models) == 0.0
        assert len(models.requests) == 3


def test_a_query_that_runs_is_not_tried_again_even_if_it_is_wrong():
    with ScriptedModels([Reply("SELECT 1")]) as models:
        assert answer(models) == 0.0
        assert len(models.requests) == 1


def test_blocks_of_code():
    from sql_agent import read_sql

    assert read_sql("a\n```sql\nSELECT 1\n```\nb\n```\nSELECT 2\n```") == "SELECT 2"
    assert read_sql("```SQLite\nSELECT 1;\n```") == "SELECT 1;"
    assert read_sql(" SELECT 1 ") == "SELECT 1"


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
    assert metrics["succeeded"] == metrics["tasks"] == 24
    assert 0.6 < metrics["mean"] < 1.0
    assert done.stderr.count("SIMULATED") == 1

    done = agl(tmp_path, "export", "sft", "solved.jsonl", "--min-reward", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "solved.jsonl").read_text().splitlines()]
    assert len(rows) == round(metrics["mean"] * 24)
    roles = [[message["role"] for message in row["messages"]] for row in rows]
    assert ["system", "user", "assistant"] in roles
    assert ["system", "user", "assistant", "user", "assistant"] in roles

    mended = next(row for row in rows if len(row["messages"]) == 5)
    done = agl(tmp_path, "trace", mended["rollout_id"], "--json")
    summary = json.loads(done.stdout)["summary"]
    assert (summary["calls"], summary["reward"]) == (2, 1.0)
    assert summary["output_tokens"] > 0


def test_it_is_run_by_the_baseline(tmp_path):
    done = agl(tmp_path, "train", str(EXAMPLE / "train.toml"), "--json", "--set", "store=memory")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout.splitlines()[-1])["metrics"]
    assert metrics["succeeded"] == metrics["rollouts"] == 83
