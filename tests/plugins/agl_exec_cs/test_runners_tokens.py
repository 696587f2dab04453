"""Runners that die after the first token of their parent process has ended."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agl_core.store import LightningStore
from agl_core.types import ExecutionEvent
from agl_exec_cs import (
    ClientServerExecutionStrategy,
    MultiprocessingEvent,
    RunStore,
    StoreAccess,
)
from agl_exec_cs.renewal import wait_and_renew
from agl_serving import mint_token
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore

SECRET = "a-secret-of-the-operator"
LIFETIME = 3  # seconds; a token ends up to one second earlier
DIED = {"error": "its runner died"}


@pytest.fixture
def store() -> RunStore:
    return RunStore(InMemoryLightningStore())


@pytest.fixture
def server(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[LightningStoreServer]:
    monkeypatch.delenv("AGL_AUTH_TOKEN", raising=False)
    serving = LightningStoreServer(store, port=0, auth_token=SECRET)
    asyncio.run(serving.start())
    yield serving
    asyncio.run(serving.stop())


async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    while not event.is_set():
        claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=1)
        if claimed is None:
            continue
        if claimed.input == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        await store.update_attempt(*ids, status="succeeded")


async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
    raise AssertionError("a process of runners runs no algorithm")


async def run_tasks(store: LightningStore) -> list[tuple[str, Any]]:
    """Kill a runner, and return how its rollout and that of its replacement ended."""
    ids = [(await store.enqueue_rollout(task)).rollout_id for task in ("kill", "work")]
    rollouts = await store.wait_for_rollouts(rollout_ids=ids, timeout=20)
    attempts = [await store.get_latest_attempt(rollout.rollout_id) for rollout in rollouts]
    return [(attempt.status, attempt.metadata) for attempt in attempts if attempt is not None]


@contextmanager
def runner_elsewhere(store: RunStore, server: LightningStoreServer) -> Iterator[None]:
    """Run a runner of a server in a thread until the block ends, and see it end in order."""
    strategy = ClientServerExecutionStrategy(
        role="runner", n_runners=1, server_host=server.endpoint, graceful_timeout=3.0
    )
    errors: list[BaseException] = []

    def run() -> None:
        try:
            strategy.execute(algorithm, runner, InMemoryLightningStore())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        store.end_run()
        thread.join(20)
    assert errors == []
    assert not thread.is_alive()


def test_a_runner_elsewhere_is_replaced_after_the_first_token_has_ended(
    store: RunStore, server: LightningStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_AUTH_TOKEN", mint_token(SECRET, "runner", lifetime=LIFETIME))
    with runner_elsewhere(store, server):
        time.sleep(LIFETIME + 0.1)
        assert asyncio.run(run_tasks(store)) == [("failed", DIED), ("succeeded", None)]


def test_a_runner_elsewhere_can_have_a_token_for_90_days(
    store: RunStore, server: LightningStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods of a run have one; it is due to be renewed after 45 days."""
    monkeypatch.setenv("AGL_AUTH_TOKEN", mint_token(SECRET, "runner", lifetime=90 * 86_400))
    with runner_elsewhere(store, server):
        assert asyncio.run(run_tasks(store)) == [("failed", DIED), ("succeeded", None)]


def test_a_spawned_runner_gets_the_token_too() -> None:
    client = LightningStoreClient("http://127.0.0.1:1", auth_token=SECRET)
    access = StoreAccess.with_client(client, 5)
    assert pickle.loads(pickle.dumps(access)).token == SECRET
    assert SECRET not in repr(access)


@pytest.mark.parametrize(
    ("token", "requests"),
    [(None, 0), (SECRET, 0), (mint_token(SECRET, "read", lifetime=60), 1)],
    ids=["none", "secret", "read"],
)
def test_a_token_that_is_not_renewed_is_asked_about_once(
    server: LightningStoreServer, token: str | None, requests: int
) -> None:
    asked: list[str] = []
    renewals: list[float | None] = []

    class Counted(LightningStoreClient):
        async def call(self, *args: Any, **more: Any) -> Any:
            asked.append(args[1])
            return await super().call(*args, **more)

        async def renew_token(self) -> float | None:
            renewals.append(await super().renew_token())
            return renewals[-1]

    client = Counted(server.endpoint, auth_token=token)
    stop = MultiprocessingEvent()
    waiting = threading.Thread(target=wait_and_renew, args=(stop, client))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    stop.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert renewals == [None]
    assert len(asked) == requests
