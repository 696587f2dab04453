"""Listeners of a run with the cs strategy: what happens in runners' processes reaches them here."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core import Algorithm, PromptTemplate, Trainer, rollout
from agl_core.plugins import hookimpl
from agl_exec_cs import ClientServerExecutionStrategy
from agl_store_memory import InMemoryLightningStore

TASKS = [f"task {number}" for number in range(10)]


@rollout
def agent(task: str, prompt_template: PromptTemplate) -> float:
    if task == "task 7":
        raise ValueError(task)
    return 0.5


class Once(Algorithm):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        prompt = PromptTemplate(template="Answer.", engine="f-string")
        await run_batch(self.get_store(), train_dataset, resources={"prompt": prompt})
        self.report_step(0, {"score": 0.5})


class Webhook:
    """Processes its first event only when the run has ended, so the others wait in its mailbox."""

    def __init__(self, ended: threading.Event) -> None:
        self.ended = ended
        self.heard: list[tuple[int, str, str]] = []

    @hookimpl
    def attempt_finished(self, rollout: Any, status: str, error: BaseException | None) -> None:
        assert self.ended.wait(60)
        self.heard.append((os.getpid(), rollout.input, status))
        assert (str(error) == "task 7") == (status == "failed")


class WithThread:
    """Has a thread from the start of the run to its end."""

    def __init__(self, ended: threading.Event) -> None:
        self.ended = ended
        self.heard: list[str] = []

    @hookimpl
    def run_started(self) -> None:
        self.inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    @hookimpl
    def rollout_finished(self, rollout: Any) -> None:
        self.inbox.put(rollout.input)

    @hookimpl
    def run_finished(self) -> None:
        self.inbox.put(None)
        self.thread.join()
        self.ended.set()

    def _work(self) -> None:
        while (item := self.inbox.get()) is not None:
            self.heard.append(item)


class Async:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @hookimpl
    async def rollout_ended(self, rollout: Any) -> None:
        self.heard.append(rollout.input)

    @hookimpl
    async def trace_finished(self, spans: Any) -> None:
        self.heard += [span.name for span in spans if span.name == "agentlightning.annotation"]


@pytest.mark.parametrize(
    "options",
    [
        {"n_runners": 2, "start_method": "fork"},
        {"n_runners": 2, "start_method": "spawn"},
        {"n_runners": 1, "start_method": "fork", "main_process": "runner"},
    ],
    ids=["fork", "spawn", "main_runner"],
)
def test_no_event_is_lost(agl_registry: Any, options: dict[str, Any]):
    ended = threading.Event()
    webhook, thread, coroutines = Webhook(ended), WithThread(ended), Async()
    for listener in (webhook, thread, coroutines):
        agl_registry.listen(listener)
    strategy = ClientServerExecutionStrategy(server_port=0, **options)
    Trainer(algorithm=Once(), store=InMemoryLightningStore(), strategy=strategy).fit(agent, TASKS)
    assert sorted(webhook.heard) == [
        (os.getpid(), task, "failed" if task == "task 7" else "succeeded") for task in TASKS
    ]
    assert sorted(thread.heard) == TASKS
    assert sorted(word for word in coroutines.heard if word in TASKS) == TASKS
    assert coroutines.heard.count("agentlightning.annotation") == len(TASKS) - 1
