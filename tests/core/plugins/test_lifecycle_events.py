"""Tests of every life-cycle event in a real run with a trainer."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core import (
    Algorithm,
    NamedResources,
    PromptTemplate,
    Trainer,
    emit_message,
    rollout,
)
from agl_core.plugins import hookimpl
from agl_core.plugins._hookspecs import EVENTS, LifecycleEvents
from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore
from tests.tables import check_each

PAGE = Path(__file__).parents[3] / "docs/plugins/hooks.md"
RESOURCES: NamedResources = {"prompt": PromptTemplate(template="Add.", engine="f-string")}


def listener(names: tuple[str, ...], hear) -> object:
    """Return an object that implements these events with all of their parameters."""
    methods: dict[str, Any] = {}
    for name in names:
        parameters = list(inspect.signature(getattr(LifecycleEvents, name)).parameters)
        passed = ", ".join(f"{p}={p}" for p in parameters)
        source = f"def {name}(self, {', '.join(parameters)}):\n    hear({name!r}, {passed})"
        scope: dict[str, Any] = {"hear": hear}
        exec(source, scope)
        methods[name] = hookimpl(scope[name])
    return type("Listener", (), methods)()


class Searching(Algorithm):
    """Writes resources three times, saves its state, and reports one step."""

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        assert train_dataset is not None
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        batch = await run_batch(store, train_dataset, resources=RESOURCES, config=config)
        await self.get_run().put_resources("tried", RESOURCES, latest=False)
        await store.update_resources("best", RESOURCES)
        await self.get_run().save({"best": "best"})
        self.report_step(0, {"score": batch.score().mean})


failing = {"once"}


@rollout
def agent(task: str, prompt_template: PromptTemplate) -> float:
    emit_message(task)
    if task in failing:
        failing.discard(task)
        raise ValueError("the first time it fails")
    return 0.5


@pytest.fixture
def trainer(agl_registry) -> Trainer:
    failing.add("once")
    return Trainer(algorithm=Searching(), store=InMemoryLightningStore(), strategy="shm")


def test_a_real_run_sends_every_event(agl_registry, trainer):
    heard: list[tuple[str, dict[str, Any]]] = []
    agl_registry.listen(listener(EVENTS, lambda name, **about: heard.append((name, about))))
    trainer.fit(agent, ["good", "once"])

    assert {name for name, _ in heard} == set(EVENTS)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for name, about in heard:
        by_name.setdefault(name, []).append(about)

    (started,), (finished,) = by_name["run_started"], by_name["run_finished"]
    assert heard[0][0] == "run_started"
    assert heard[-1][0] == "run_finished"
    assert (started["mode"], started["config"]["algorithm"]) == ("fit", "Searching")
    assert finished == {"run_id": started["run_id"], "mode": "fit", "error": None}

    # Two rollouts with three attempts: a retry does not create a rollout.
    assert [r["rollout"].input for r in by_name["rollout_started"]] == ["good", "once"]
    assert sorted(r["rollout"].status for r in by_name["rollout_finished"]) == ["succeeded"] * 2
    attempts = [r["rollout"].attempt.sequence_id for r in by_name["attempt_started"]]
    assert sorted(attempts) == [1, 1, 2]
    ends = {
        (r["rollout"].input, r["rollout"].attempt.sequence_id): r
        for r in by_name["attempt_finished"]
    }
    assert ends["once", 1]["status"] == "failed"
    assert isinstance(ends["once", 1]["error"], ValueError)
    assert ends["once", 1]["reward"] is None
    assert ends["once", 2]["status"] == ends["good", 1]["status"] == "succeeded"
    assert ends["once", 2]["reward"] == 0.5
    assert all(end["duration"] >= 0 and end["worker_id"] for end in ends.values())

    traces = [[span.name for span in trace["spans"]] for trace in by_name["trace_finished"]]
    assert len(traces) == 3
    assert all("agentlightning.message" in names for names in traces)

    written = [(r["resources"].resources_id, r["origin"]) for r in by_name["resources_changed"]]
    assert len(written) == 3
    assert written[1][0].endswith("/tried")
    assert written[-1] == ("best", "Searching")
    assert {origin for _, origin in written} == {"Searching"}
    (saved,) = by_name["run_saved"]
    assert saved == {"run": "", "state": {"best": "best"}, "origin": "Searching"}
    (step,) = by_name["algorithm_step"]
    assert step == {"algorithm": "Searching", "step": 0, "metrics": {"score": 0.5}}


@pytest.mark.parametrize("event", EVENTS)
def test_a_listener_that_raises_is_reported_and_changes_nothing(
    agl_registry, trainer, event, caplog
):
    def fail(name, **about):
        raise RuntimeError("listener out of order")

    heard: list[str] = []
    agl_registry.listen(listener((event,), fail))
    agl_registry.listen(listener((event,), lambda name, **_: heard.append(name)))
    with caplog.at_level(logging.ERROR, "agl_core.plugins._events"):
        trainer.fit(agent, ["good", "once"])
    assert heard
    messages = [r for r in caplog.records if f"failed in {event}" in r.getMessage()]
    assert len(messages) == len(heard)
    assert "listener out of order" in str(messages[0].exc_info)


def test_run_finished_has_the_error_that_ends_a_run(agl_registry):
    class Failing(Algorithm):
        async def run(self, train_dataset=None, val_dataset=None):
            raise ZeroDivisionError

    heard: list[Any] = []
    agl_registry.listen(listener(("run_finished",), lambda _, **about: heard.append(about)))
    with pytest.raises(ZeroDivisionError):
        Trainer(algorithm=Failing(), strategy="shm").fit(agent, ["good"])
    assert isinstance(heard[0]["error"], ZeroDivisionError)


def test_every_event_is_documented_with_its_exact_signature():
    page = PAGE.read_text()
    flat = " ".join(page.split()).replace("( ", "(").replace(", )", ")")

    def check(event: str) -> None:
        signature = str(inspect.signature(getattr(LifecycleEvents, event))).replace("'", "")
        assert f" {event}{signature} " in flat
        assert f"| `{event}` |" in page

    check_each(check, EVENTS)
