"""Errors of the SQLite store's file: messages, and the store's state afterwards."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from agl_core.errors import (
    ConfigError,
    InvalidArgumentError,
    StoreDataError,
    StoreFullError,
    StoreUnavailableError,
)
from agl_core.plugins import validate_config
from agl_core.store import current_request_key
from agl_core.types import EnqueueRolloutRequest, Rollout, RolloutConfig, Span
from agl_store_sqlite import SqliteConfig, SqliteLightningStore, writer
from agl_store_sqlite.backend import _return_claims
from agl_store_sqlite.schema import SCHEMA_VERSION
from agl_store_sqlite.writer import _Write
from agl_testing.database import inputs_after_a_fork


def open_store(path, **options):
    return SqliteLightningStore(path, durability="normal", **options)


async def write(store, operation):
    """Run an operation in a transaction of the store's writer."""
    return await store._sqlite.database.writer.write(operation)


def _requests(connection: sqlite3.Connection):
    return connection.execute("SELECT key FROM requests").fetchall()


async def test_a_missing_folder_raises_an_error_that_names_the_file(tmp_path):
    with pytest.raises(StoreDataError, match=r"nowhere/store\.db: the file cannot be opened"):
        open_store(tmp_path / "nowhere" / "store.db")


async def test_a_file_of_another_format_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(StoreDataError, match=r"notes\.txt: the file is not an SQLite database"):
        open_store(path)
    assert path.read_text().startswith("not a database")


async def test_the_database_of_another_program_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreDataError, match="another program"):
        open_store(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


async def test_a_newer_schema_is_refused_and_the_error_names_the_upgrade_command(tmp_path):
    path = tmp_path / "store.db"
    await open_store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreDataError, match=r": upgrade agl-store-sqlite$"):
        open_store(path)


async def test_reads_of_a_damaged_file_raise_and_other_calls_still_work(tmp_path):
    path = tmp_path / "store.db"
    store = open_store(path)
    rollouts = await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input="x" * 2000) for _ in range(500)]
    )
    await store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(32 * 8192)  # after the schema and the root pages of the tables
        file.write(os.urandom(size - 32 * 8192))
    store = open_store(path)
    said: set[str] = set()
    for rollout in rollouts:
        try:
            await store.get_rollout_by_id(rollout.rollout_id)
        except StoreDataError as error:
            said.add(str(error))
    assert any(text.startswith(f"{path}: the file is damaged") for text in said), said
    assert (await store.statistics()).get("name") == "SqliteLightningStore"
    await store.close()


async def test_a_damaged_value_that_sqlite_cannot_notice_raises(tmp_path):
    store = open_store(tmp_path / "store.db")
    rollout = await store.enqueue_rollout("x")
    await write(store, lambda tx: tx.execute("UPDATE rollouts SET input = x'ff00'"))
    with pytest.raises(StoreDataError, match=r"store\.db: the file is damaged.*cannot be read"):
        await store.get_rollout_by_id(rollout.rollout_id)
    await store.close()


@pytest.mark.parametrize("path", [1, None, ["a"]])
def test_a_path_that_is_none_is_a_mistake_of_the_configuration(path):
    with pytest.raises(ConfigError, match=r"^store\.path: "):
        validate_config(SqliteConfig, {"path": path}, path="store")


async def test_a_read_only_file_raises_an_error_that_says_so(tmp_path):
    path = tmp_path / "store.db"
    await open_store(path).close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    code = f"""
        import os
        from agl_core.errors import StoreDataError
        from agl_store_sqlite import SqliteLightningStore
        if os.geteuid() == 0:  # root may write to read-only files
            os.setuid(65534)
        try:
            SqliteLightningStore({str(path)!r})
        except StoreDataError as error:
            print(error)
    """
    temporary = Path(tempfile.gettempdir())
    for folder in tmp_path.parents:
        if temporary in folder.parents:
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    tmp_path.chmod(0o755)
    assert f"{path}: the file or its folder is read-only" in done.stdout, done.stderr


async def test_a_full_disk_keeps_acknowledged_writes_and_the_store_continues_with_space(tmp_path):
    store = open_store(tmp_path / "store.db")
    kept = [(await store.enqueue_rollout(i)).rollout_id for i in range(10)]
    pages = await write(store, lambda tx: tx.one("PRAGMA page_count")[0])
    # SQLite reports this limit like a full disk: SQLITE_FULL.
    await write(store, lambda tx: tx.execute(f"PRAGMA max_page_count = {pages + 5}"))

    async def fill() -> None:
        while True:
            kept.append((await store.enqueue_rollout("x" * 4096)).rollout_id)

    with pytest.raises(StoreFullError, match=r"store\.db: the disk is full"):
        await fill()
    assert len(kept) > 10
    found = await store.query_rollouts()
    assert [rollout.rollout_id for rollout in found] == kept
    await write(store, lambda tx: tx.execute("PRAGMA max_page_count = 1000000"))
    kept.append((await store.enqueue_rollout("after")).rollout_id)
    assert [r.rollout_id for r in await store.query_rollouts()] == kept
    await store.close()


async def test_a_lock_of_another_process_raises_after_busy_seconds(tmp_path):
    path = tmp_path / "store.db"
    store = open_store(path, busy_seconds=0.2)
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match=r"store\.db is locked by another process"):
        await store.enqueue_rollout("x")
    foreign.execute("COMMIT")
    foreign.close()
    assert (await store.enqueue_rollout("y")).status == "queuing"
    await store.close()


@pytest.mark.parametrize("released", [True, False])
async def test_the_log_says_that_a_write_waits_for_another_process(
    tmp_path, monkeypatch, caplog, released
):
    monkeypatch.setattr(writer, "SILENT_SECONDS", 0.01)
    store = open_store(tmp_path / "store.db", busy_seconds=10 if released else 0.2)
    foreign = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    write = asyncio.ensure_future(store.enqueue_rollout("x"))
    async with asyncio.timeout(10):
        while "store.db: another process holds its lock" not in caplog.text:
            await asyncio.sleep(0.001)
    if released:
        foreign.execute("COMMIT")
        assert (await write).status == "queuing"
    else:
        with pytest.raises(StoreUnavailableError, match="locked by another process"):
            await write
    foreign.close()
    await store.close()


async def test_a_failed_write_of_a_group_is_rolled_back_alone(tmp_path):
    store = open_store(tmp_path / "store.db")
    await store.query_rollouts()  # the first call scans, and would change the order below

    def write_then_fail(tx):
        tx.position_at_tail()
        tx.execute("INSERT INTO requests VALUES ('k', 0, '1')")
        raise InvalidArgumentError("after writing")

    batch = [
        asyncio.ensure_future(store.enqueue_rollout("before")),
        asyncio.ensure_future(write(store, write_then_fail)),
        asyncio.ensure_future(store.enqueue_rollout("after")),
    ]
    first, failed, last = await asyncio.gather(*batch, return_exceptions=True)
    assert isinstance(failed, InvalidArgumentError)
    assert isinstance(first, Rollout)
    assert isinstance(last, Rollout)
    assert [r.rollout_id for r in await store.query_rollouts()] == [
        first.rollout_id,
        last.rollout_id,
    ]
    assert store._sqlite.database.look(_requests) == []
    await store.close()


async def test_an_input_without_a_json_form_is_refused(tmp_path):
    store = open_store(tmp_path / "store.db")
    with pytest.raises(InvalidArgumentError, match="input"):
        await store.enqueue_rollout(object())
    assert (await store.statistics()).get("total_rollouts") == 0
    await store.close()


async def test_a_closed_store_raises(tmp_path):
    store = open_store(tmp_path / "store.db")
    await store.close()
    await store.close()
    with pytest.raises(StoreDataError, match="closed"):
        await store.enqueue_rollout("x")
    with pytest.raises(StoreDataError, match="closed"):
        await store.get_latest_resources()


async def test_closing_a_store_ends_its_threads(tmp_path):
    before = set(threading.enumerate())
    store = open_store(tmp_path / "store.db")
    await store.enqueue_rollout("x")
    await store.query_rollouts()
    assert set(threading.enumerate()) - before
    await store.close()
    assert set(threading.enumerate()) - before == set()


async def test_a_thread_that_ended_leaves_no_connection(tmp_path):
    store = open_store(tmp_path / "store.db")
    rollout = await store.enqueue_rollout("x")

    def opened() -> int:
        return sum(file.path == store.path for file in psutil.Process().open_files())

    before = opened()
    for _ in range(5):
        read = threading.Thread(
            target=lambda: asyncio.run(store.get_rollout_by_id(rollout.rollout_id))
        )
        read.start()
        read.join()
    # SQLite keeps the descriptor of a closed connection for the next one.
    assert opened() <= before + 1
    await store.close()
    assert opened() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_keeps_the_connections_of_its_parents_threads_open(tmp_path):
    code = f"""
        import gc, os, threading, warnings
        from agl_store_sqlite import SqliteLightningStore

        warnings.simplefilter("ignore")  # about a fork with threads
        database = SqliteLightningStore({str(tmp_path / "store.db")!r})._sqlite.database
        has_read, ends = threading.Event(), threading.Event()

        def read():
            database.look(lambda connection: connection.execute("SELECT 1"))
            has_read.set()
            ends.wait()

        thread = threading.Thread(target=read)
        thread.start()
        has_read.wait()
        if os.fork() == 0:
            gc.collect()
            os._exit(len(database._readers))
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        ends.set()
        thread.join()
        print(len(database._readers))
        database.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.check_output(command, text=True).split() == ["1", "0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
async def test_a_forked_child_opens_the_file_again(tmp_path):
    store = open_store(tmp_path / "store.db")
    assert await inputs_after_a_fork(store) == ["child", "parent"]


async def test_a_call_repeated_under_its_idempotency_key_happens_once(tmp_path):
    store = open_store(tmp_path / "store.db")
    token = current_request_key.set("enqueue-1")
    first = await store.enqueue_rollout("x")
    again = await store.enqueue_rollout("x")
    current_request_key.set("claim-1")
    claimed = await store.dequeue_rollout("w")
    claimed_again = await store.dequeue_rollout("w")
    current_request_key.set("attempt-1")
    attempt = await store.start_attempt(first.rollout_id)
    attempt_again = await store.start_attempt(first.rollout_id)
    current_request_key.set("resources-1")
    resources = await store.add_resources({})
    resources_again = await store.add_resources({})
    current_request_key.reset(token)
    assert again.rollout_id == first.rollout_id
    assert claimed is not None
    assert claimed_again is not None
    assert claimed.attempt.attempt_id == claimed_again.attempt.attempt_id
    assert attempt.attempt.attempt_id == attempt_again.attempt.attempt_id
    assert resources == resources_again
    assert (await store.statistics()).get("total_attempts") == 2
    await store.close()


@pytest.mark.parametrize("undone", [True, False])
async def test_a_claim_that_was_given_back_is_made_again_under_its_key(tmp_path, undone):
    store = open_store(tmp_path / "store.db")
    await store.enqueue_rollout("x")
    token = current_request_key.set("claim-1")
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    if undone:  # its caller was cancelled
        await write(store, lambda tx: _return_claims(tx, [(claimed, claimed.attempt)]))
    else:
        await store.return_claim(claimed.rollout_id, claimed.attempt.attempt_id)
    again = await store.dequeue_rollout("w")
    assert again is not None
    assert (again.status, again.attempt.status) == ("preparing", "preparing")
    assert again.attempt.sequence_id == (1 if undone else 2)
    assert await store.dequeue_rollout("w") == again
    current_request_key.reset(token)
    await store.close()


async def test_a_filter_takes_40000_ids(tmp_path):
    store = open_store(tmp_path / "store.db")
    rollout = await store.start_rollout("x")
    page = await store.query_rollouts(
        rollout_id_in=[*(f"ro-{i}" for i in range(40_000)), rollout.rollout_id]
    )
    assert [item.rollout_id for item in page] == [rollout.rollout_id]
    span = Span.from_attributes(
        attributes={}, rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
    )
    await store.add_span(span)
    assert list(await store.query_spans(rollout.rollout_id, sort_by="rollout_id")) == [span]
    await store.close()


@pytest.mark.parametrize("config", ["x'7b22'", "CAST('{\"max_attempts\":0}' AS BLOB)"])
async def test_a_damaged_rollout_leaves_the_queue_and_the_others_go_on(tmp_path, config):
    store = open_store(tmp_path / "store.db", scan_debounce_seconds=0.0)
    first, damaged, last = [await store.enqueue_rollout(number) for number in range(3)]
    running = await store.start_rollout("runs", config=RolloutConfig(timeout_seconds=1000.0))
    ids = [damaged.rollout_id, running.rollout_id]
    await write(
        store,
        lambda tx: [
            tx.execute(f"UPDATE rollouts SET config = {config} WHERE rollout_id = ?", (name,))
            for name in ids
        ],
    )
    claimed = await store.dequeue_many_rollouts(limit=2)
    assert [claim.rollout_id for claim in claimed] == [first.rollout_id, last.rollout_id]
    assert await store.dequeue_rollout() is None
    waited = await store.statistics()
    assert waited.get("total_rollouts") == 4
    with pytest.raises(
        StoreDataError, match=rf"the stored config of {damaged.rollout_id} cannot be read"
    ):
        await store.get_rollout_by_id(damaged.rollout_id)
    await store.close()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed there")
@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_removed_under_the_store_is_noticed_by_the_next_write(tmp_path, suffix):
    path = tmp_path / "store.db"
    store = open_store(path)
    await store.enqueue_rollout("kept")
    Path(f"{path}{suffix}").unlink()
    for _ in range(2):
        with pytest.raises(StoreDataError, match=r"store\.db: the file or its log was removed"):
            await store.enqueue_rollout("lost")
    await store.close()


async def test_callers_whose_group_failed_get_errors_of_their_own(tmp_path):
    store = open_store(tmp_path / "store.db")
    began, goes_on = threading.Event(), threading.Event()

    def wait(tx):
        began.set()
        return goes_on.wait(10)

    def fail(tx):
        raise sqlite3.OperationalError("out of luck")

    first = asyncio.create_task(write(store, wait))
    await asyncio.to_thread(began.wait, 10)
    later = [asyncio.create_task(write(store, operation)) for operation in (fail, fail)]
    await asyncio.sleep(0)
    goes_on.set()
    errors = await asyncio.gather(first, *later, return_exceptions=True)
    assert errors[0] is True
    assert [type(error) for error in errors[1:]] == [StoreDataError, StoreDataError]
    errors[1].add_note("of the first")
    assert not hasattr(errors[2], "__notes__")
    await store.close()


async def test_a_transaction_that_cannot_be_rolled_back_fails_its_callers_and_all_later_ones(
    tmp_path,
):
    store = open_store(tmp_path / "store.db")

    def judge(action, what, *rest):
        refused = action == sqlite3.SQLITE_TRANSACTION and what == "ROLLBACK"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def fail(tx):
        tx.connection.set_authorizer(judge)
        raise sqlite3.OperationalError("out of luck")

    for operation in (fail, lambda tx: None):
        with pytest.raises(StoreDataError, match=r"cannot be rolled back .*; open the store again"):
            await asyncio.wait_for(write(store, operation), 10)
    await store.close()


async def test_what_a_cancelled_caller_wrote_stands_if_the_store_was_closed_meanwhile(
    tmp_path, caplog
):
    store = open_store(tmp_path / "store.db")
    writer = store._sqlite.database.writer
    await store.close()
    writer._take_back(_Write(lambda tx: 1, None, True, lambda tx, result: None), 1)
    assert "A write of a cancelled caller stands" in caplog.text
