"""The search and the whole demo, end to end on the simulated model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import agl_core as agl
from agent import SEED_PROMPT, book_room, seed_resources
from search import Candidate, prompt_search
from simulated_model import MODEL_NAME, SimulatedModel, create_app
from tasks import make_splits

EXAMPLE = Path(__file__).parents[3] / "examples" / "room_booking"
MAIN = (str(EXAMPLE / "main.py"),)
AGL = ("-m", "agl_core.cli")
TASKS = make_splits(seed=3, train=30, val=24, test=60)


@contextmanager
def served(model: SimulatedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a model from a thread, and make it the endpoint."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(model), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    port = listener.getsockname()[1]
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_MODEL", MODEL_NAME)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def search(**options: Any) -> tuple[agl.Trainer, list[Candidate], list[str]]:
    history: list[Candidate] = []
    said: list[str] = []
    trainer = agl.Trainer(
        algorithm=prompt_search(history=history, say=said.append, **options),
        adapter="messages",
        strategy="shm",
        n_runners=4,
        initial_resources=seed_resources(),
    )
    trainer.fit(book_room, TASKS.train, val_dataset=TASKS.val)
    return trainer, history, said


def latest_prompt(trainer: agl.Trainer) -> str:
    latest = asyncio.run(trainer.store.get_latest_resources())
    assert latest is not None
    template = latest.resources["prompt"]
    assert isinstance(template, agl.PromptTemplate)
    return template.template


def test_finds_a_better_prompt_and_leaves_it_in_the_store(monkeypatch: pytest.MonkeyPatch):
    with served(SimulatedModel(seed=1), monkeypatch):
        trainer, history, said = search(rounds=5, candidates=3, batch=6)
        best = max(history, key=lambda one: one.score.mean)
        winner = latest_prompt(trainer)
        assert winner == best.prompt != SEED_PROMPT
        before = trainer.evaluate(book_room, TASKS.test, resources=seed_resources()).score()
        after = trainer.evaluate(
            book_room,
            TASKS.test,
            resources={"prompt": agl.PromptTemplate(template=winner, engine="f-string")},
        ).score()
    assert after.mean > before.mean + 0.25
    assert [one.version for one in history] == [f"v{i}" for i in range(len(history))]
    assert {one.score.n for one in history} == {len(TASKS.val)}
    known = {"v0": SEED_PROMPT}
    for one in history[1:]:
        assert one.prompt.startswith(known[one.parent or ""])
        known[one.version] = one.prompt
    assert len({one.prompt for one in history}) == len(history)
    assert said[0].startswith("seed")
    assert said[-1].startswith("round   5")


def test_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch):
    with served(SimulatedModel(seed=1), monkeypatch):
        trainer, history, said = search(rounds=50, candidates=2, batch=5, max_rollouts=130)
    total = asyncio.run(trainer.store.statistics()).get("total_rollouts", 0)
    assert total == 24 * len(history) + 5 * sum(line.startswith("round") for line in said)
    assert 130 - (5 + 2 * 24) < total <= 130
    assert said[-1] == "stopping: another round may exceed 130 rollouts"


class BadEditor(SimulatedModel):
    """Books as usual; its edits are of no use, each in another way."""

    def __init__(self) -> None:
        super().__init__()
        self._edits = iter(range(1000))

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("tools"):
            return super().reply(request)
        bad = ["", "No placeholder.", "Broken {today", "{today} and {tomorrow}", None]
        content = bad[next(self._edits) % len(bad)]
        if content is None:
            raise ValueError("the model has a bad day")
        return {"role": "assistant", "content": content}


def test_useless_edits_are_rejected_and_the_seed_stays(monkeypatch: pytest.MonkeyPatch):
    with served(BadEditor(), monkeypatch):
        trainer, history, said = search(rounds=50, candidates=5, batch=4, patience=2)
    assert [one.version for one in history] == ["v0"]
    assert latest_prompt(trainer) == SEED_PROMPT
    assert said[-1] == "stopping: nothing better in 2 rounds"
    assert sum(line.startswith("an edit is left out") for line in said) >= 8


# -- the demo as a user runs it --------------------------------------------------------------------


def start(*arguments: str, program: tuple[str, ...] = MAIN) -> subprocess.Popen[str]:
    hidden = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env={key: value for key, value in os.environ.items() if key not in hidden},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, program: tuple[str, ...] = MAIN) -> tuple[int, str, str]:
    with start(*arguments, program=program) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def test_the_demo_ends_with_one_json_object():
    code, out, err = run("--json", "--rollouts", "700", "--seed", "2")
    assert code == 0, err
    result = json.loads(out)
    assert result["status"] == "succeeded"
    assert result["simulated"] is True
    assert result["winner"] in result["history"]
    assert result["seed_score"]["n"] == result["winner_score"]["n"] == 120
    assert result["gain"]["low"] > 0.2
    assert result["rollouts"] <= 700 + 240
    assert "a SIMULATED model answers" in err


def test_the_demo_prints_its_tables():
    code, out, err = run("--rollouts", "300")
    assert code == 0, err
    assert "95 % interval" in out
    assert "Held-out tasks, SIMULATED model" in out
    assert "winner" in out
    assert "round   1" in err


def test_ctrl_c_tells_the_best_so_far_and_leaves_nothing_running():
    with start("--json") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        lines: list[str] = []
        while not any(line.startswith("seed  ") for line in lines):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    assert process.returncode == 130
    result = json.loads(out)
    assert result["status"] == "interrupted"
    assert result["history"][0]["version"] == "v0"
    assert "Interrupted after measuring" in rest
    assert "Traceback" not in rest
    port = int(lines[0].split("127.0.0.1:")[1].split("/")[0])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_help_shows_examples():
    code, out, _ = run("--help")
    assert code == 0
    assert "python examples/room_booking/main.py --json" in out


def test_the_train_file_is_the_same_run():
    file = str(EXAMPLE / "train.toml")
    code, out, err = run(
        "train", file, "--json", "--set", "algorithm.rounds=1", "--set", "store=memory", program=AGL
    )
    assert code == 0, err
    result = json.loads(out)
    assert result["status"] == "succeeded"
    assert result["metrics"]["failed"] == 0
    assert result["metrics"]["succeeded"] == 48 + 12 + 4 * 48
    prompt = result["best_resources"]["resources"]["prompt"]["template"]
    assert prompt.startswith(SEED_PROMPT + "\n")
    assert "a SIMULATED model answers" in err


def test_the_train_file_can_be_evaluated():
    code, out, err = run("eval", str(EXAMPLE / "train.toml"), "--set", "store=memory", program=AGL)
    assert code == 0, err
    assert dict(line.split(maxsplit=1) for line in out.splitlines())["succeeded"] == "48"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_demo_wins_clearly_with_any_seed(seed: int):
    code, out, err = run("--json", "--seed", str(seed))
    assert code == 0, err
    result = json.loads(out)
    assert result["winner_score"]["low"] > 0.8
    assert result["gain"]["low"] > 0.5
