"""``agl replay --check`` names what makes an agent irreproducible."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.types import LLM
from agl_replay.check import set_iterations
from agl_scripted import Reply, ScriptedModels
from agl_store_sqlite import SqliteLightningStore

AGENT = '''
import datetime
import logging
import random
import socket
import time
import uuid
from pathlib import Path
from random import choice

import agl_core as agl
from openai import OpenAI

logger = logging.getLogger(__name__)


class Messy(agl.LitAgent):
    """Reads what it likes."""

    def rollout(self, task, resources, rollout):
        llm = resources["llm"]
        words = {"north", "south", "east", "west", "up", "down", "left", "right"}
        question = f"{task} {' '.join(words)}"  # set
        if self.messy:
            logger.warning("a log record has a time, too")
            question += datetime.datetime.now().isoformat()  # now
            question += f"{time.time()}"  # time
            question += f"{uuid.uuid4()} {choice('ab')}"  # uuid
            question += Path("notes.txt").read_text()  # file
            question += str(random.Random().random())  # unseeded
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname()).close()  # socket
        rng = random.Random(7)  # seeded
        agl.random().random(), agl.now()
        with OpenAI(base_url=llm.endpoint, api_key="none") as client:
            message = {"role": "user", "content": f"{question} {rng.random()}"}
            client.chat.completions.create(model=llm.model, messages=[message])
        return 1.0


class Tidy(Messy):
    messy = False


class Untidy(Messy):
    messy = True
'''


def marked(*marks: str) -> dict[str, int]:
    lines = AGENT.splitlines()
    return {
        mark: next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
        for mark in marks
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with an agent, and with a recording of its tidy variant."""
    (tmp_path / "checked_agent.py").write_text(AGENT)
    (tmp_path / "notes.txt").write_text("note")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("checked_agent", None)


async def record(agent: Any, task: str) -> None:
    from agl_runner import LitAgentRunner
    from agl_tracer_otel import OtelTracer

    store = SqliteLightningStore("agl.db")
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
    with ScriptedModels([Reply("yes")]) as models, runner.run_context(agent=agent, store=store):
        await runner.step(task, resources={"llm": LLM(endpoint=models.base_url, model="m")})
    await store.close()


def check(agent: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["replay", "latest", "--agent", f"checked_agent.py:{agent}", "--check", "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_each_cause_is_named_with_its_line(project: Path, capsys: pytest.CaptureFixture[str]):
    checked_agent = importlib.import_module("checked_agent")
    asyncio.run(record(checked_agent.Untidy(), "go"))
    code, said = check("Untidy", capsys)
    assert (code, said["same"]) == (1, False)
    assert said["changed_at"] == ["call 1: messages[0].parts[0].content"] * 2
    assert {Path(read["file"]).name for read in said["reads"]} == {"checked_agent.py"}
    found = {(read["line"], read["kind"]) for read in said["reads"]}
    lines = marked("set", "now", "time", "uuid", "file", "unseeded", "socket")
    kinds = {"now": "time", "uuid": "random", "unseeded": "random"}
    assert found == {(line, kinds.get(mark, mark)) for mark, line in lines.items()}


@pytest.mark.slow
def test_a_set_is_found_by_another_order_and_a_reproducible_agent_passes(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    checked_agent = importlib.import_module("checked_agent")
    asyncio.run(record(checked_agent.Tidy(), "go"))
    capsys.readouterr()
    assert main(["replay", "latest", "--agent", "checked_agent.py:Tidy", "--check"]) == 1
    first, second, _, row = capsys.readouterr().out.splitlines()
    assert "differs at call 1: messages[0].parts[0].content" in first + second
    line = marked("set")["set"]
    assert row.split() == ["order", "of", "a", "set", f"checked_agent.py:{line}", "sorted(...)"]

    source = AGENT.replace("join(words)", "join(sorted(words))")
    (project / "checked_agent.py").write_text(source)
    checked_agent.__dict__.clear()
    exec(compile(source, "checked_agent.py", "exec"), checked_agent.__dict__)
    asyncio.run(record(checked_agent.Tidy(), "go"))
    code, said = check("Tidy", capsys)
    assert (code, said) == (0, {"same": True, "changed_at": [None, None], "reads": []})


def test_uses_of_the_order_of_a_set():
    source = """
a = {1, 2}
for x in a: pass
b = [y for y in set(c) | d]
e = sorted(a)
f = ",".join(a)
g = f"{a}"
h = {z for z in a}
i = len(a), 1 in a
j = list([1])
"""
    assert set_iterations(source) == [3, 4, 6, 7]


def test_an_agent_that_does_not_run_is_reported(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["replay", "latest", "--check", "--agent", "gone.py:solve"]) != 0
    assert "the agent could not be run: " in capsys.readouterr().err
