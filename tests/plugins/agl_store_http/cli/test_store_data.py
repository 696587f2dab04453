"""``agl store export``, ``import`` and ``vacuum``, and the store that ``agl store`` serves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agl_cli_kit import main
from agl_core.errors import MissingDependencyError
from agl_core.store import LightningStore
from agl_core.types import LLM, Checkpoint, RolloutConfig, Span
from agl_serving import mint_token
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.transfer import export_records, import_records, read_records, writing
from agl_store_memory import InMemoryLightningStore

from ..filled_stores import JUDGED, SECRET, content, fill, judge, rewards

sqlite = pytest.importorskip("agl_store_sqlite")


def open_file(path: Path) -> Any:
    return sqlite.SqliteLightningStore(path, durability="normal")


async def closing(store: LightningStore, work: Any) -> Any:
    try:
        return await work(store)
    finally:
        await store.close()


@pytest.fixture
def filled(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(closing(open_file(tmp_path / "one.db"), fill))
    return tmp_path


def test_a_copy_is_the_store_and_may_be_interrupted(filled, capsys, monkeypatch):
    from agl_store_http import transfer

    monkeypatch.setattr(transfer, "_BATCH", 4)
    restore = sqlite.SqliteLightningStore.restore
    left = [2]

    async def failing(self: Any, records: Any) -> int:
        if not left[0]:
            raise OSError("no space left on device")
        left[0] -= 1
        return await restore(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite.SqliteLightningStore, "restore", failing)
        assert main(["store", "copy", "one.db", "two.db"]) == 1
    capsys.readouterr()
    said: list[str] = []
    for _ in range(2):
        assert main(["store", "copy", "one.db", "two.db"]) == 0
        said.append(capsys.readouterr().out.partition("; ")[2].partition(" records")[0])
    assert said == ["8", "0"]  # of 16
    one, two = (
        asyncio.run(closing(open_file(filled / name), content)) for name in ("one.db", "two.db")
    )
    assert one == two


def test_a_copy_keeps_keys_and_an_export_masks_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = LLM(endpoint="http://x", model="m", api_key="sk-secret")

    async def add(store: LightningStore) -> None:
        await store.add_resources({"m": model})

    asyncio.run(closing(open_file(tmp_path / "one.db"), add))
    assert main(["store", "copy", "one.db", "two.db"]) == 0
    assert main(["store", "export", "all.jsonl", "--path", "two.db"]) == 0
    assert main(["store", "export", "keys.jsonl", "--with-keys", "--path", "two.db"]) == 0
    assert "sk-secret" not in (tmp_path / "all.jsonl").read_text()
    assert '"api_key":"***"' in (tmp_path / "all.jsonl").read_text()
    assert "sk-secret" in (tmp_path / "keys.jsonl").read_text()


@pytest.mark.parametrize(
    "command", [["copy", "URL", "two.db"], ["export", "x.jsonl", "--with-keys", "--url", "URL"]]
)
def test_keys_that_a_token_does_not_see_are_not_copied_as_masks(
    tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    store = InMemoryLightningStore()
    model = LLM(endpoint="http://x", model="m", api_key="sk-secret")
    asyncio.run(store.add_resources({"m": model}))
    server = LightningStoreServer(store, port=0, auth_token=SECRET)
    asyncio.run(server.start())
    try:
        arguments = [server.endpoint if each == "URL" else each for each in command]
        monkeypatch.setenv("AGL_AUTH_TOKEN", mint_token(SECRET, "read", lifetime=60))
        assert main(["store", *arguments]) == 2
        assert "use a token of scope algorithm" in capsys.readouterr().err
        monkeypatch.setenv("AGL_AUTH_TOKEN", SECRET)
        assert main(["store", *arguments]) == 0
    finally:
        asyncio.run(server.stop())


def test_an_export_follows_no_link(filled):
    """In a folder that others can write to, a link could name any file of the user."""
    (filled / "precious").write_text("mine")
    for name in ("all.jsonl", "all.jsonl.part"):
        (filled / name).unlink(missing_ok=True)
        (filled / name).symlink_to(filled / "precious")
        assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 0
        assert (filled / "precious").read_text() == "mine"
        assert not (filled / "all.jsonl").is_symlink()


def test_a_file_comes_back_as_it_was(filled, capsys):
    assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 0
    said = capsys.readouterr().out
    assert said == "all.jsonl: 3 resources, 1 worker, 4 rollout, 2 attempt, 6 span\n"
    assert not (filled / "all.jsonl.part").exists()
    for taken in ("16", "0"):  # the second time there is nothing new
        assert main(["store", "import", "all.jsonl", "--path", "two.db"]) == 0
        assert f"all.jsonl: {taken} records were taken in" in capsys.readouterr().out
    one, two = (
        asyncio.run(closing(open_file(filled / name), content)) for name in ("one.db", "two.db")
    )
    assert one == two
    first, second = (
        asyncio.run(closing(open_file(filled / name), _statistics)) for name in ("one.db", "two.db")
    )
    assert first == second


async def _statistics(store: LightningStore) -> Any:
    counts = await store.statistics()
    latest = await store.get_latest_resources()
    claimed = await store.dequeue_rollout("Worker-1")
    assert latest is not None
    assert claimed is not None
    draw = await store.get_next_span_sequence_id(
        (await store.query_rollouts()).items[0].rollout_id, ""
    )
    return (
        {key: counts[key] for key in counts if key.startswith("total")},
        latest.resources_id,
        draw,
    )


class Screen(io.StringIO):
    """A terminal as standard error."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_an_export_and_an_import_are(filled, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 0
    assert re.search(r"rollouts .*4/4", screen.getvalue())
    assert main(["store", "import", "all.jsonl", "--path", "two.db"]) == 0
    assert re.search(r"records .*16/16", screen.getvalue())


def test_a_server_gets_what_is_finished_under_new_ids(filled, capsys):
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    asyncio.run(server.start())
    try:
        assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 0
        assert main(["store", "import", "all.jsonl", "--url", server.endpoint]) == 0
        assert main(["store", "export", "again.jsonl", "--url", server.endpoint]) == 0
    finally:
        asyncio.run(server.stop())
    before = list(map(json.loads, (filled / "all.jsonl").read_text().splitlines()))
    after = list(map(json.loads, (filled / "again.jsonl").read_text().splitlines()))

    def spans(lines: list[Any]) -> list[Any]:
        kept = ("name", "attributes", "sequence_id", "start_time")
        return [{k: r["record"][k] for k in kept} for r in lines if r["kind"] == "span"]

    finished = [r["record"] for r in before if r["kind"] == "rollout"][1]
    (rollout,) = [r["record"] for r in after if r["kind"] == "rollout"]
    same = ("input", "mode", "status", "config", "metadata", "resources_id")
    assert {k: rollout[k] for k in same} == {k: finished[k] for k in same}
    assert rollout["rollout_id"] != finished["rollout_id"]
    assert spans(after) == spans(before)[3:]
    (attempt,) = [r["record"] for r in after if r["kind"] == "attempt"]
    assert (attempt["status"], attempt["metadata"]) == ("succeeded", {"why": "succeeded"})
    latest = asyncio.run(store.get_latest_resources())
    assert latest is not None
    (first, *_) = [r["record"] for r in before if r["kind"] == "resources"]
    assert latest.resources_id == first["resources_id"]  # it had changed last


@pytest.mark.parametrize("batch", [1000, 1])
def test_what_an_agent_gave_itself_counts_in_no_copy(tmp_path, monkeypatch, batch):
    from agl_store_http import transfer
    from agl_store_http.client import spans

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transfer, "_BATCH", batch)
    monkeypatch.setattr(spans, "MAX_BATCH", batch)
    asyncio.run(closing(open_file(tmp_path / "one.db"), judge))
    assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 0
    assert main(["store", "copy", "one.db", "copied.db"]) == 0
    assert main(["store", "import", "all.jsonl", "--path", "imported.db"]) == 0
    for name in ("one.db", "copied.db", "imported.db"):
        assert asyncio.run(closing(open_file(tmp_path / name), rewards)) == JUDGED, name
    stores = {"served": InMemoryLightningStore(), "memory": InMemoryLightningStore()}
    server = LightningStoreServer(stores["served"], port=0, auth_token=SECRET)
    monkeypatch.setenv("AGL_AUTH_TOKEN", mint_token(SECRET, "algorithm", lifetime=60))
    asyncio.run(server.start())
    try:
        assert main(["store", "import", "all.jsonl", "--url", server.endpoint]) == 0
    finally:
        asyncio.run(server.stop())
    asyncio.run(import_records(stores["memory"], read_records(tmp_path / "all.jsonl")))
    for name, store in stores.items():
        assert asyncio.run(rewards(store)) == JUDGED, name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "rollout"}', "all.jsonl, line 1 is not a record"),
        ("[", "all.jsonl, line 1 is not a record"),
        ('{"kind": "x", "record": {}}', "line 1: unknown kind 'x'"),
        ('{"kind": "rollout", "record": {"input": 1}}', "this rollout cannot be restored"),
        ('{"kind": "span", "record": {"rollout_id": 1}}', "this span cannot be restored"),
    ],
)
def test_a_malformed_line_is_named(filled, capsys, line, message):
    (filled / "all.jsonl").write_text(line + "\n")
    assert main(["store", "import", "all.jsonl", "--path", "two.db"]) == 2
    assert message in capsys.readouterr().err


def test_parquet_without_pyarrow_names_the_package(filled, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="pyarrow"), writing(filled / "x.parquet"):
        pass
    with pytest.raises(MissingDependencyError, match="pyarrow"):
        list(read_records(filled / "x.parquet"))


def test_parquet_holds_the_same(filled):
    pytest.importorskip("pyarrow")
    assert main(["store", "export", "all.parquet", "--path", "one.db"]) == 0
    assert main(["store", "import", "all.parquet", "--path", "two.db"]) == 0
    one, two = (
        asyncio.run(closing(open_file(filled / name), content)) for name in ("one.db", "two.db")
    )
    assert one == two


async def add_span(store: LightningStore, attempt: Any, number: int) -> None:
    span = Span.from_attributes(
        attributes={"text": "x" * 2000},
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=number,
    )
    await store.add_span(span)


async def test_an_export_goes_on_without_spans_that_were_evicted(caplog):
    store = InMemoryLightningStore(eviction_memory_threshold=30_000, safe_memory_threshold=20_000)
    for number in range(3):
        started = await store.start_rollout(number)
        for place in range(4):
            await add_span(store, started.attempt, place)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    kinds = [kind for kind, _ in await content(store)]
    assert kinds.count("rollout") == kinds.count("attempt") == 3
    assert 0 < kinds.count("span") < 12
    assert "without their spans" in caplog.text


async def test_a_rollout_that_was_cancelled_in_the_queue_is_imported():
    store, other = InMemoryLightningStore(), InMemoryLightningStore()
    queued = await store.enqueue_rollout("x", "val", metadata={"n": 1})
    await store.update_rollout(queued.rollout_id, status="cancelled")
    records = [record async for record in export_records(store)]
    assert await import_records(other, records) == 1
    (rollout,) = await other.query_rollouts()
    assert (rollout.input, rollout.mode, rollout.status) == ("x", "val", "cancelled")
    assert rollout.metadata == {"n": 1}


async def test_no_runner_is_handed_what_is_imported():
    source, target = InMemoryLightningStore(), InMemoryLightningStore()
    retried = RolloutConfig(max_attempts=3, retry_condition=["failed"], timeout_seconds=60)
    for claims in (0, 1, 2):
        queued = await source.enqueue_rollout(claims, config=retried)
        for _ in range(claims):
            claimed = await source.dequeue_rollout("w")
            assert claimed is not None
            await source.update_attempt(claimed.rollout_id, "latest", status="failed")
        await source.update_rollout(queued.rollout_id, status="cancelled")
    records = [record async for record in export_records(source)]
    server = LightningStoreServer(target, port=0)
    await server.start()
    runner, operator = (LightningStoreClient(server.endpoint) for _ in range(2))
    waiting = asyncio.ensure_future(runner.dequeue_rollout("live", wait=30))
    while await target.get_worker_by_id("live") is None:  # until it waits
        await asyncio.sleep(0)
    await import_records(operator, records)
    new = await operator.enqueue_rollout("new")
    claimed = await waiting
    assert claimed is not None
    assert claimed.rollout_id == new.rollout_id
    imported = (await target.query_rollouts(status_in=["cancelled"])).items
    assert [rollout.input for rollout in imported] == [0, 1, 2]
    assert [rollout.config for rollout in imported] == [retried] * 3
    for each in (runner, operator):
        await each.close()
    await server.stop()


async def test_an_import_holds_no_more_records_than_a_batch_may_take(tmp_path, monkeypatch):
    from agl_store_http import transfer

    monkeypatch.setattr(transfer, "_BATCH_BYTES", 2_000)
    store, restored = InMemoryLightningStore(), open_file(tmp_path / "restored.db")
    for _ in range(3):
        await store.enqueue_rollout("x" * 3_000)
    sizes: list[int] = []

    async def restore(records: Any) -> int:
        sizes.append(len(records))
        return len(records)

    monkeypatch.setattr(restored, "restore", restore)
    records = [record async for record in export_records(store)]
    assert await import_records(restored, records) == 3
    assert sizes == [1, 1, 1]
    await restored.close()


class Retrying(InMemoryLightningStore):
    """Begins another attempt right after each query of attempts."""

    async def query_attempts(self, rollout_id: str, **options: Any) -> Any:
        page = await super().query_attempts(rollout_id, **options)
        retry = await self.start_attempt(rollout_id)
        await add_span(self, retry.attempt, 1)
        return page


async def test_an_export_while_an_attempt_begins_can_be_imported(tmp_path):
    live = Retrying()
    started = await live.start_rollout("x")
    await add_span(live, started.attempt, 1)
    records = [record async for record in export_records(live)]
    restored = open_file(tmp_path / "restored.db")
    assert await import_records(restored, records) == 3
    await restored.close()


@pytest.mark.parametrize("kept", [400, 100, 0])
async def test_an_export_has_all_that_an_operator_did_not_drop_meanwhile(tmp_path, kept):
    store = open_file(tmp_path / "one.db")
    ids = [(await store.start_rollout(number)).rollout_id for number in range(700)]
    for name in ids[:600]:
        if name not in ids[::50]:
            await store.update_attempt(name, "latest", status="succeeded")
    exported: list[str] = []
    async for record in export_records(store):
        if record.kind == "rollout":
            exported.append(json.loads(record.json)["rollout_id"])
        if len(exported) == 150:
            await store.vacuum(keep_last=kept)
    assert len(exported) == len(set(exported))
    assert {*ids[::50], *ids[600:]} <= set(exported)
    await store.close()


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_an_export_that_fails_leaves_no_file(tmp_path, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(RuntimeError), writing(tmp_path / name):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_export_to_a_full_disk_says_so_and_leaves_no_file(filled, capsys, monkeypatch):
    from agl_store_http import transfer

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer, "_write_line", fail)
    assert main(["store", "export", "all.jsonl", "--path", "one.db"]) == 1
    assert capsys.readouterr().err == "agl: error: all.jsonl: the disk is full\n"
    assert list(filled.glob("all*")) == []


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], 41),
        (["--keep-last", "11"], 11),
        (["--keep", "1h"], 41),
        (["--keep", "0s"], 1),
        (["--keep", "1h", "--keep-last", "0"], 41),
        (["--keep", "0s", "--keep-last", "5"], 5),
    ],
)
def test_vacuum_drops_what_is_finished_and_old(tmp_path, monkeypatch, capsys, options, left):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> None:
        await store.update_resources("run:x", {"checkpoint": Checkpoint(state=1)})
        for _ in range(40):
            started = await store.start_rollout("x" * 20_000)
            span = Span.from_attributes(
                attributes={}, rollout_id=started.rollout_id, attempt_id=started.attempt.attempt_id
            )
            await store.add_span(span)
            await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.enqueue_rollout("unfinished")

    asyncio.run(closing(open_file(tmp_path / "runs.db"), work))
    size = (tmp_path / "runs.db").stat().st_size
    assert main(["store", "vacuum", "--path", "runs.db", *options]) == 0
    assert capsys.readouterr().out == f"{41 - left} rollouts were dropped\n"

    async def look(store: LightningStore) -> None:
        rollouts = (await store.query_rollouts()).items
        assert len(rollouts) == left
        assert rollouts[-1].input == "unfinished"
        counts = await store.statistics()
        assert counts.get("total_rollouts") == left
        assert counts.get("total_attempts") == counts.get("total_spans") == left - 1
        spans = [len((await store.query_spans(r.rollout_id)).items) for r in rollouts]
        assert sum(spans) == left - 1
        assert await store.get_resources_by_id("run:x") is not None

    asyncio.run(closing(open_file(tmp_path / "runs.db"), look))
    if left < 20:
        assert (tmp_path / "runs.db").stat().st_size < size / 2


def test_vacuum_goes_by_the_clock_of_the_store(filled, capsys, monkeypatch):
    async def ahead(self: Any) -> float:
        return time.time() + 7200

    assert main(["store", "vacuum", "--path", "one.db", "--keep", "1h"]) == 0
    assert capsys.readouterr().out == "0 rollouts were dropped\n"
    monkeypatch.setattr(sqlite.SqliteLightningStore, "now", ahead)
    assert main(["store", "vacuum", "--path", "one.db", "--keep", "1h"]) == 0
    assert capsys.readouterr().out == "1 rollouts were dropped\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vacuum", "--keep", "soon"], "--keep: 'soon' is not a length of time"),
        (["vacuum", "--url", "http://127.0.0.1:1"], "LightningStoreClient cannot be vacuumed"),
        (["vacuum", "--backend", "memory"], "a store in memory is gone with its process"),
        (["vacuum", "--path", "gone.db"], "there is no store gone.db: name its file with --path"),
        (["export", "x.jsonl"], "agl.db: name its file with --path, or its server with --url"),
        (
            ["export", "x.jsonl", "--url", "http://127.0.0.1:1", "--path", "y"],
            "--url and --backend",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["store", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def served(tmp_path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> tuple[str, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agl_cli_kit", "store", "--port", "0", *args],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (\S+) \(", line)
        assert found, line
        return line, found[1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


def test_a_file_is_served_by_default_and_said_first(served, tmp_path):
    line, _ = served()
    assert line.startswith(f"Serving store sqlite {{'path': '{tmp_path / 'agl.db'}'}} at http")
    assert "survives" not in line
    assert (tmp_path / "agl.db").exists()


@pytest.mark.timing
def test_workers_share_a_file_and_wake_each_other(served, tmp_path):
    _, url = served("--n-workers", "4", "--path", "runs.db")

    async def work() -> tuple[list[float], list[float]]:
        woken: list[float] = []
        told: list[float] = []
        # A client keeps its connections, and with them the server processes it speaks to.
        clients = [LightningStoreClient(url) for _ in range(8)]
        for number in range(24):
            runner, algorithm = clients[number % 4], clients[4 + number % 4]
            waiting = asyncio.ensure_future(runner.dequeue_rollout(f"Worker-{number}", wait=20))
            await asyncio.sleep(0.05)
            began = time.monotonic()
            rollout = await algorithm.enqueue_rollout(number)
            claimed = await asyncio.wait_for(waiting, 20)
            woken.append(time.monotonic() - began)
            assert claimed is not None
            assert claimed.rollout_id == rollout.rollout_id
            ended = asyncio.ensure_future(
                algorithm.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=20)
            )
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await runner.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            assert [r.rollout_id for r in await ended] == [rollout.rollout_id]
            told.append(time.monotonic() - began)
        for client in clients:
            await client.close()
        return sorted(woken), sorted(told)

    woken, told = asyncio.run(work())
    middle = len(woken) // 2
    print(f"median ms to wake: dequeue {1e3 * woken[middle]:.1f}, wait {1e3 * told[middle]:.1f}")
    # Both include the call that caused it; a second would mean that it polled.
    assert woken[middle] < 0.05
    assert told[middle] < 0.05
    assert max(woken[-1], told[-1]) < 0.9


def test_the_watchdog_looks_once_for_all_processes(tmp_path):
    async def work() -> list[int]:
        stores = [
            sqlite.SqliteLightningStore(
                tmp_path / "runs.db", durability="normal", scan_debounce_seconds=30
            )
            for _ in range(4)
        ]
        started = await stores[0].start_rollout(1, config=RolloutConfig(timeout_seconds=0.01))
        await stores[0].run_watchdog()
        with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
            file.execute("UPDATE counters SET value = 0 WHERE name = 'last_scan'")
        await asyncio.sleep(0.02)
        verdicts = await asyncio.gather(*(store.run_watchdog() for store in stores))
        attempt = await stores[3].get_latest_attempt(started.rollout_id)
        assert attempt is not None
        assert attempt.status == "timeout"
        for store in stores:
            await store.close()
        return sorted(verdicts)

    assert asyncio.run(work()) == [0, 0, 0, 1]


def test_four_server_processes_share_one_watchdog(served, tmp_path):
    period = 0.4
    _, url = served(
        "--n-workers", "4", "--path", "runs.db", "--set", f"scan_debounce_seconds={period}"
    )
    late = RolloutConfig(timeout_seconds=0.1, max_attempts=2, retry_condition=["timeout"])
    file = sqlite3.connect(tmp_path / "runs.db")
    looks: list[float] = []

    async def ask(client: LightningStoreClient, until: float) -> None:
        # Every call of a process whose last look is too long ago would look.
        while time.monotonic() < until:
            await client.query_rollouts(limit=1)
            (last,) = file.execute("SELECT value FROM counters WHERE name = 'last_scan'").fetchone()
            if last not in looks:
                looks.append(last)

    async def work() -> tuple[list[str], list[str]]:
        clients = [LightningStoreClient(url) for _ in range(12)]
        told: list[str] = []

        async def listen() -> None:
            async for event in clients[0].events():
                if event.kind == "attempt" and event.status == "timeout":
                    told.append(str(event.rollout_id))  # noqa: PERF401 -- it never ends

        listening = asyncio.ensure_future(listen())
        started = [
            await client.start_rollout(number, config=late)
            for number, client in enumerate(clients * 2)
        ]
        until = time.monotonic() + 8 * period
        await asyncio.gather(*(ask(client, until) for client in clients))
        again = await clients[0].dequeue_many_rollouts(limit=100)
        listening.cancel()
        await asyncio.wait([listening])
        for client in clients:
            await client.close()
        assert sorted(r.rollout_id for r in again) == sorted(r.rollout_id for r in started)
        assert {r.attempt.sequence_id for r in again} == {2}
        return told, [r.rollout_id for r in started]

    told, started = asyncio.run(work())
    file.close()
    database = str(tmp_path / "runs.db")
    processes = psutil.Process().children(recursive=True)
    assert (
        sum(database in [open_file.path for open_file in each.open_files()] for each in processes)
        == 4
    )
    assert sorted(told) == sorted(started)  # each verdict once
    assert len(looks) > 3
    assert min(b - a for a, b in itertools.pairwise(looks)) >= period


@pytest.mark.parametrize(
    ("package", "command", "said_of_it"),
    [
        ("agl_store_http", ["store", "export", "all.jsonl"], "4 rollout"),
        ("agl_top", ["rollouts"], "succeeded"),
        ("agl_top", ["top", "--once"], "succeeded"),
        ("agl_trace", ["trace", "latest"], "step 2"),
    ],
)
def test_a_store_in_a_read_only_folder_is_read(
    filled, capsys, monkeypatch, package, command, said_of_it
):
    pytest.importorskip(package)
    locked = filled / "locked"
    locked.mkdir()
    (filled / "one.db").rename(locked / "one.db")
    real = os.access
    # The tests may run as root, for whom no mode is read-only.
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).resolve() != locked and real(path, mode)
    )
    before = sorted(locked.iterdir())
    assert main([*command, "--path", "locked/one.db"]) == 0
    said = capsys.readouterr()
    assert said_of_it in said.out
    assert "read-only" in said.err
    assert sorted(locked.iterdir()) == before
