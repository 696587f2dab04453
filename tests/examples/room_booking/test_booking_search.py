"""The example's own search, as a function and as a train file, on the simulated model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import agl_core as agl
from agent import SEED_PROMPT, book_room, seed_resources
from endpoint import llm_proxy
from search import Candidate, prompt_search
from simulated_model import MODEL_NAME, SimulatedModel, create_app
from tasks import make_splits

EXAMPLE = Path(__file__).parents[3] / "examples" / "room_booking"
AGL = ("-m", "agl_cli_kit")
TASKS = make_splits(seed=3, train=30, val=24, test=60)


@contextmanager
def served(model: SimulatedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a model in a thread, and make it the endpoint."""
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
        llm_proxy=llm_proxy(),
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
    """Books as usual; each of its edits is unusable for another reason."""

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
    assert sum(line.startswith("an edit is left out: ") for line in said) >= 8


def test_the_train_file_is_the_same_run(run):
    settings = ("algorithm.rounds=1", "algorithm.candidates=2", "store=memory", "proxy.port=0")
    options = chain.from_iterable(("--set", setting) for setting in settings)
    code, out, err = run(*AGL, "train", str(EXAMPLE / "train.toml"), "--json", *options)
    assert code == 0, err
    result = json.loads(out)
    assert result["status"] == "succeeded"
    assert result["metrics"]["failed"] == 0
    assert result["metrics"]["succeeded"] == 48 + 12 + 2 * 48
    prompt = result["best_resources"]["resources"]["prompt"]["template"]
    assert prompt.startswith(SEED_PROMPT + "\n")
    assert "a SIMULATED model answers" in err


def test_the_train_file_can_be_evaluated(run):
    options = ("--set", "store=memory", "--set", "proxy.port=0")
    code, out, err = run(*AGL, "eval", str(EXAMPLE / "train.toml"), *options)
    assert code == 0, err
    assert dict(line.split(maxsplit=1) for line in out.splitlines())["succeeded"] == "48"
