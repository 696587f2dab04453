"""The cs strategy with real processes: the processes of the bundles, and how runs end."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import ConfigError, InvalidArgumentError, LaunchError
from agl_core.execution import ExecutionEvent
from agl_core.metrics import MeasureCalls
from agl_core.store import LightningStore, intercept
from agl_core.types import Rollout
from agl_exec_cs import ClientServerExecutionStrategy
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from agl_testing.ports import free_port


def strategy(n_runners: int = 2, **options: Any) -> ClientServerExecutionStrategy:
    options.setdefault("server_port", 0)
    options.setdefault("graceful_timeout", 3.0)
    options.setdefault("terminate_timeout", 3.0)
    return ClientServerExecutionStrategy(n_runners=n_runners, **options)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lets this process fork so many times, and then has no memory."""
    fork = os.fork

    def allow(times: int) -> None:
        left = iter(range(times))

        def limited() -> int:
            if next(left, None) is None:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return fork()

        monkeypatch.setattr(os, "fork", limited)

    return allow


# Functions create the bundles, so that they are pickled by value for spawned processes.


def make_runner() -> Any:
    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        """Finish all queued rollouts, recording the process."""
        while not event.is_set():
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=1)
            if claimed is None:
                continue
            if claimed.input == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            await store.update_attempt(
                claimed.rollout_id,
                claimed.attempt.attempt_id,
                status="succeeded",
                metadata={"pid": os.getpid(), "store": type(store).__name__},
            )

    return runner


def make_batch(inputs: list[Any], found: list[Rollout] | None = None) -> Any:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        rollouts = [await store.enqueue_rollout(each) for each in inputs]
        done = await store.wait_for_rollouts(
            rollout_ids=[rollout.rollout_id for rollout in rollouts], timeout=30
        )
        if found is not None:
            found.extend(done)

    return algorithm


def outcome(store: LightningStore) -> list[tuple[Rollout, Any]]:
    """Return each rollout with its latest attempt."""
    rollouts = asyncio.run(store.query_rollouts()).items
    return [(rollout, getattr(rollout, "attempt", None)) for rollout in rollouts]


# -- who runs where ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_runners_are_processes_whatever_the_start_method(method: Any) -> None:
    store = InMemoryLightningStore()
    strategy(2, start_method=method).execute(make_batch(list(range(6))), make_runner(), store)
    pairs = outcome(store)
    assert [rollout.status for rollout, _ in pairs] == ["succeeded"] * 6
    assert {attempt.metadata["store"] for _, attempt in pairs} == {"RunnerClient"}
    assert os.getpid() not in {attempt.metadata["pid"] for _, attempt in pairs}


def test_the_runner_in_the_main_process(tmp_path: Path) -> None:
    """For debuggers: the algorithm runs elsewhere, and this process's store is unchanged."""
    local, seen = InMemoryLightningStore(), []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        done: list[Rollout] = []
        await make_batch(["a", "b"], done)(store, event)
        statuses = [rollout.status for rollout in done]
        (tmp_path / "done").write_text(f"{os.getpid()} {statuses}")

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        seen.append((os.getpid(), threading.current_thread() is threading.main_thread()))
        await make_runner()(store, worker_id, event)

    strategy(1, main_process="runner", start_method="fork").execute(algorithm, runner, local)
    pid, statuses = (tmp_path / "done").read_text().split(" ", 1)
    assert int(pid) != os.getpid()
    assert statuses == "['succeeded', 'succeeded']"
    assert seen == [(os.getpid(), True)]
    assert outcome(local) == []


@pytest.mark.parametrize("watched", [False, True])
def test_a_store_client_needs_no_server_of_ours(
    watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    asyncio.run(server.start())
    monkeypatch.delattr(LightningStoreServer, "start")
    try:
        client: LightningStore = LightningStoreClient(server.endpoint)
        if watched:
            client = intercept(client, MeasureCalls())
        strategy(2).execute(make_batch([1, 2]), make_runner(), client)
        assert [rollout.status for rollout, _ in outcome(store)] == ["succeeded"] * 2
    finally:
        asyncio.run(server.stop())


def test_runners_use_the_token_of_a_store_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_AUTH_TOKEN", raising=False)
    store, secret = InMemoryLightningStore(), "a secret of more than sixteen characters"
    server = LightningStoreServer(store, port=0, auth_token=secret)
    asyncio.run(server.start())
    try:
        client = LightningStoreClient(server.endpoint, auth_token=secret)
        strategy(1).execute(make_batch(["kill", 1]), make_runner(), client)
        pairs = outcome(store)
        assert [rollout.status for rollout, _ in pairs] == ["failed", "succeeded"]
        assert pairs[0][1].metadata == {"error": "its runner died"}
    finally:
        asyncio.run(server.stop())


def test_processes_cannot_share_a_memory_store() -> None:
    with pytest.raises(ConfigError, match="keeps its data in one process"):
        strategy(2, managed_store=False).execute(
            make_batch([]), make_runner(), InMemoryLightningStore()
        )


# -- how runs end --------------------------------------------------------------------------------


def test_the_algorithms_error_is_raised() -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"):
        strategy(2).execute(algorithm, make_runner(), InMemoryLightningStore())


def test_a_runners_error_ends_the_run_and_is_reported() -> None:
    cancelled: list[bool] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(event.is_set())
            raise

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if worker_id == 1:
            raise OSError("broken runner")
        await event.wait_async()

    with pytest.raises(RuntimeError, match=r"^runner-1 failed with OSError: broken runner$"):
        strategy(2, graceful_timeout=0.2).execute(algorithm, runner, InMemoryLightningStore())
    assert cancelled == [True]


def test_a_runner_that_is_killed_is_replaced_and_its_attempt_failed() -> None:
    store = InMemoryLightningStore()
    strategy(1).execute(make_batch(["kill", "a", "b"]), make_runner(), store)
    pairs = outcome(store)
    assert [rollout.status for rollout, _ in pairs] == ["failed", "succeeded", "succeeded"]
    assert pairs[0][1].metadata == {"error": "its runner died"}


def test_a_runner_that_dies_again_and_again_ends_the_run() -> None:
    store = InMemoryLightningStore()
    with pytest.raises(RuntimeError, match="runner-0 died with exit code -9"):
        strategy(1, max_restarts=1, graceful_timeout=0.5).execute(
            make_batch(["kill", "kill", "a"]), make_runner(), store
        )
    assert [rollout.status for rollout, _ in outcome(store)] == ["failed", "failed", "queuing"]


def test_a_runner_that_cannot_be_replaced_ends_the_run(forks: Callable[[int], None]) -> None:
    forks(1)
    with pytest.raises(RuntimeError, match=r"runner-0 died with .* -9, and cannot be .*memory"):
        strategy(1, graceful_timeout=0.5).execute(
            make_batch(["kill", "a"]), make_runner(), InMemoryLightningStore()
        )
    assert not multiprocessing.active_children()


def test_no_runner_is_left_if_one_cannot_be_started(forks: Callable[[int], None]) -> None:
    forks(2)
    with pytest.raises(OSError, match="memory"):
        strategy(3).execute(make_batch(["a"]), make_runner(), InMemoryLightningStore())
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("code", "allowed"), [(0, (0, -15)), (7, (0, -15)), (7, (0, 7))])
def test_exit_codes(code: int, allowed: tuple[int, ...]) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        while await store.get_worker_by_id("Worker-0") is None:
            await asyncio.sleep(0.02)

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.update_worker("Worker-0")
        await event.wait_async()
        os._exit(code)

    run = strategy(1, allowed_exit_codes=allowed)
    if code in allowed:
        run.execute(algorithm, runner, InMemoryLightningStore())
    else:
        with pytest.raises(RuntimeError, match="exit code 7"):
            run.execute(algorithm, runner, InMemoryLightningStore())


def test_a_runner_that_ignores_everything_is_killed_and_leaves_no_attempt_open() -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout("stuck")
        while not (await store.query_rollouts(status_in=["preparing"])).items:
            await asyncio.sleep(0.02)

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        assert await store.dequeue_rollout("Worker-0", wait=10)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(300)

    store = InMemoryLightningStore()
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="exit code -9"):
        strategy(1, graceful_timeout=0.3, terminate_timeout=0.3).execute(algorithm, runner, store)
    assert time.monotonic() - start < 20
    ((rollout, attempt),) = outcome(store)
    assert (rollout.status, attempt.status) == ("failed", "failed")


def test_an_interrupt_that_hits_a_runner_while_it_exits_is_not_a_failure(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30)

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await make_runner()(store, worker_id, event)
        # The process hangs in its exit functions until the interrupt of the shutdown.
        Finalize(None, time.sleep, args=(60,), exitpriority=1)

    store = InMemoryLightningStore()
    with caplog.at_level("WARNING", logger="agl_exec_cs"):
        strategy(1, graceful_timeout=1.0).execute(algorithm, runner, store)
    assert "runner-0 did not end in time" in caplog.text
    assert "KeyboardInterrupt" not in capfd.readouterr().err
    ((rollout, attempt),) = outcome(store)
    assert (rollout.status, attempt.status) == ("succeeded", "succeeded")


def test_unpicklable_parts_are_named() -> None:
    lock = threading.Lock()

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        lock.locked()

    with pytest.raises(LaunchError, match=r"runner-0 cannot be pickled .*spawn.*lock"):
        strategy(1, start_method="spawn").execute(make_batch([]), runner, InMemoryLightningStore())


# -- the server ----------------------------------------------------------------------------------


def _taken_port() -> tuple[socket.socket, int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    listener, port = _taken_port()
    with listener, pytest.raises(LaunchError, match="choose another port"):
        strategy(2, server_port=port).execute(
            make_batch([]), make_runner(), InMemoryLightningStore()
        )


def test_a_free_port_replaces_a_taken_default_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_SERVER_PORT", raising=False)
    listener, port = _taken_port()
    monkeypatch.setattr("agl_exec_cs.client_server._DEFAULT_PORT", port)
    store = InMemoryLightningStore()
    with listener:
        run = ClientServerExecutionStrategy(n_runners=1)
        assert run.server_port == port
        run.execute(make_batch([1]), make_runner(), store)
    assert [rollout.status for rollout, _ in outcome(store)] == ["succeeded"]


# -- configuration -------------------------------------------------------------------------------


def test_arguments_beat_variables_beat_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CURRENT_ROLE", "SERVER_HOST", "SERVER_PORT", "MANAGED_STORE"):
        monkeypatch.delenv(f"AGL_{name}", raising=False)
    run = ClientServerExecutionStrategy()
    assert (run.role, run.server_host, run.server_port) == ("both", "localhost", 4747)
    assert run.managed_store is True
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    monkeypatch.setenv("AGL_SERVER_HOST", "far.example")
    monkeypatch.setenv("AGL_SERVER_PORT", "99")
    monkeypatch.setenv("AGL_MANAGED_STORE", "no")
    run = ClientServerExecutionStrategy()
    assert (run.role, run.server_host, run.server_port) == ("runner", "far.example", 99)
    assert run.managed_store is False
    run = ClientServerExecutionStrategy("algorithm", "near", 1, managed_store=True)
    assert (run.role, run.server_host, run.server_port) == ("algorithm", "near", 1)
    assert run.managed_store is True


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AGL_CURRENT_ROLE", "boss", "role must be one of algorithm, runner, both, not 'boss'"),
        ("AGL_SERVER_PORT", "http", "AGL_SERVER_PORT is 'http'"),
        ("AGL_MANAGED_STORE", "2", "AGL_MANAGED_STORE is '2'"),
    ],
)
def test_bad_variables(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ClientServerExecutionStrategy()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_runners": 0}, "n_runners: .* greater than or equal to 1"),
        ({"main_process": "runner", "n_runners": 2}, "needs role='both' and n_runners=1"),
        ({"main_process": "runner", "role": "runner"}, "needs role='both' and n_runners=1"),
        ({"main_process": "both"}, "main_process: .*algorithm.*runner"),
    ],
)
def test_bad_arguments(options: Any, message: str) -> None:
    with pytest.raises((ConfigError, InvalidArgumentError), match=message):
        ClientServerExecutionStrategy(**options)


# -- roles on different machines -----------------------------------------------------------------


def in_thread(work: Any) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("n_runners", [1, 2])
def test_runners_elsewhere_are_notified_of_the_end_of_the_run(n_runners: int) -> None:
    port, store = free_port(), InMemoryLightningStore()
    # The runners start first, and wait for their server.
    runners = strategy(n_runners, role="runner", server_port=port, server_host="127.0.0.1")
    thread, errors = in_thread(
        lambda: runners.execute(make_batch([]), make_runner(), InMemoryLightningStore())
    )
    strategy(1, role="algorithm", server_port=port).execute(
        make_batch([1, 2, 3]), make_runner(), store
    )
    thread.join(20)
    assert not thread.is_alive()
    assert errors == []
    pairs = outcome(store)
    assert [rollout.status for rollout, _ in pairs] == ["succeeded"] * 3
    workers = {attempt.worker_id for _, attempt in pairs}
    assert workers.isdisjoint({"Worker-0", "Worker-1"})  # the names are unique to this machine


def test_a_runner_elsewhere_that_is_killed_is_replaced_and_its_attempt_failed() -> None:
    port, store = free_port(), InMemoryLightningStore()
    runners = strategy(2, role="runner", server_port=port)
    thread, errors = in_thread(
        lambda: runners.execute(make_batch([]), make_runner(), InMemoryLightningStore())
    )
    strategy(1, role="algorithm", server_port=port).execute(
        make_batch(["kill", "kill", "a"]), make_runner(), store
    )
    thread.join(20)
    assert errors == []
    pairs = outcome(store)
    assert [rollout.status for rollout, _ in pairs] == ["failed", "failed", "succeeded"]
    assert pairs[0][1].metadata == {"error": "its runner died"}


def test_all_attempts_of_a_runner_elsewhere_that_is_killed_are_failed() -> None:
    port, store = free_port(), InMemoryLightningStore()

    async def holds_two(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        claimed: list[Any] = []
        while len(claimed) < 2:
            claimed += await store.dequeue_many_rollouts(
                limit=2 - len(claimed), worker_id=f"Worker-{worker_id}", wait=1
            )
        os.kill(os.getpid(), signal.SIGKILL)

    runners = strategy(1, role="runner", server_port=port, max_restarts=0)
    thread, errors = in_thread(
        lambda: runners.execute(make_batch([]), holds_two, InMemoryLightningStore())
    )
    strategy(1, role="algorithm", server_port=port).execute(
        make_batch(["a", "b"]), make_runner(), store
    )
    thread.join(20)
    assert [str(error) for error in errors] == ["runner-0 died with exit code -9"]
    assert [attempt.metadata for _, attempt in outcome(store)] == [
        {"error": "its runner died"},
        {"error": "its runner died"},
    ]


def test_a_runner_elsewhere_that_hangs_is_ended_with_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port, store = free_port(), InMemoryLightningStore()
    works = make_runner()

    async def hangs(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if worker_id % 2:
            time.sleep(600)  # like native code that never returns
        await works(store, worker_id, event)

    timeouts = {"graceful_timeout": 0.3, "terminate_timeout": 0.3}
    runners = strategy(2, role="runner", server_port=port, **timeouts)
    thread, errors = in_thread(
        lambda: runners.execute(make_batch([]), hangs, InMemoryLightningStore())
    )
    strategy(1, role="algorithm", server_port=port).execute(make_batch([1]), works, store)
    thread.join(30)
    assert not thread.is_alive()
    assert errors == []
    assert "runner-1 did not end in time; interrupting it" in caplog.text
    assert [rollout.status for rollout, _ in outcome(store)] == ["succeeded"]


def test_the_server_stays_until_remote_rollouts_are_finished() -> None:
    port, local = free_port(), InMemoryLightningStore()

    async def slow(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        claimed = await store.dequeue_rollout("Worker-far", wait=10)
        assert claimed is not None
        await asyncio.sleep(0.5)
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
        )
        assert await store.dequeue_rollout("Worker-far", wait=10) is None
        assert event.is_set()

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout("task")
        while not (await store.query_rollouts(status_in=["preparing"])).items:
            await asyncio.sleep(0.02)

    runners = strategy(1, role="runner", server_port=port, server_host=f"http://127.0.0.1:{port}")
    thread, errors = in_thread(lambda: runners.execute(algorithm, slow, local))
    strategy(1, role="algorithm", server_port=port).execute(algorithm, slow, local)
    thread.join(20)
    assert errors == []
    assert outcome(local)[0][0].status == "succeeded"


def test_a_lost_server_is_waited_for() -> None:
    port, store = free_port(), InMemoryLightningStore()
    ids: list[str] = []

    async def serve(inputs: list[int]) -> None:
        server = LightningStoreServer(store, port=port)
        await server.start()
        try:
            ids.extend([(await store.enqueue_rollout(each)).rollout_id for each in inputs])
            await store.wait_for_rollouts(rollout_ids=ids, timeout=20)
        finally:
            await server.stop()

    # A forked runner could inherit the listener of the server that starts meanwhile.
    runners = {"role": "runner", "server_port": port, "start_method": "spawn"}
    stop = strategy(1, reconnect_timeout=4.0, **runners)
    thread, errors = in_thread(
        lambda: stop.execute(make_batch([]), make_runner(), InMemoryLightningStore())
    )
    asyncio.run(serve([1, 2]))
    time.sleep(0.5)  # nothing serves now, and the runner has noticed
    asyncio.run(serve([3, 4]))
    assert [rollout.status for rollout, _ in outcome(store)] == ["succeeded"] * 4
    # The server does not come back, so the runner gives up with the reason.
    thread.join(30)
    assert not thread.is_alive()
    (error,) = errors
    assert "runner-0 failed with StoreUnavailableError: " in str(error)
