"""The PostgreSQL store when its server, its connection or its disk fails."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from typing import Any

import psycopg
import pytest

from agl_core import waits
from agl_core.errors import (
    InvalidArgumentError,
    StoreDataError,
    StoreFullError,
    StoreUnavailableError,
)
from agl_core.store import current_request_key
from agl_core.types import AttemptedRollout
from agl_store_postgres import PostgresLightningStore
from agl_store_postgres.claims import give_back
from agl_store_postgres.pool import Connection, Pool
from agl_store_postgres.session import Session
from agl_testing import FaultyRelay
from agl_testing.database import DatabaseFaultSuite, Writers
from agl_testing.ports import held_port
from agl_testing.samples import span_of

from .postgres_server import Server, folders, running_server


class TestPostgresFaults(DatabaseFaultSuite):
    @pytest.fixture
    def database(self, own_server: Server) -> Server:
        return own_server


# -- the server ------------------------------------------------------------------------------------


async def test_calls_do_not_notice_that_their_connections_are_ended(own_server):
    store = PostgresLightningStore(own_server.uri, timeout_seconds=20)
    writers = Writers(store)
    for acknowledged in range(10, 60, 10):
        await writers.until(acknowledged)
        for backend in own_server.backends():
            with contextlib.suppress(psycopg.Error):
                own_server.run("SELECT pg_terminate_backend(%s)", backend)
    await writers.until(70)
    await writers.check()
    assert writers.refused == 0
    await store.close()


async def test_the_log_says_that_a_call_waits_for_the_server(monkeypatch, caplog):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.0)
    with held_port() as port:
        address = f"127.0.0.1:{port}/postgres"
        store = PostgresLightningStore(f"postgresql://agl@{address}", timeout_seconds=0.2)
        with pytest.raises(StoreUnavailableError):
            await store.get_rollout_by_id("x")
        await store.close()
    assert f"Waiting for PostgreSQL at {address}" in caplog.text


async def test_calls_follow_a_failover_to_a_standby():
    with running_server(fsync="off") as primary, folders(1) as (folder,):
        standby = Server(folder, primary=primary, fsync="off")
        store = PostgresLightningStore(
            f"postgresql://agl@/postgres?host={primary.folder},{folder}"
            "&target_session_attrs=read-write",
            timeout_seconds=20,
        )
        try:
            standby.start()
            # From here on a commit is acknowledged once it is on both servers.
            primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.run("SELECT pg_reload_conf()")
            writers = Writers(store)
            waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
            await writers.until(20)
            primary.kill()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(standby.tool, "pg_ctl", "promote", "-D", str(standby.data))
            await writers.until(40)
            rollout = await store.enqueue_rollout("after the failover")
            claimed = await asyncio.wait_for(waiting, 30)
            assert claimed is not None
            assert claimed.rollout_id == rollout.rollout_id
            await writers.check()
        finally:
            await store.close()
            standby.stop()


@contextlib.contextmanager
def read_only(server: Server):
    """Make a server refuse writes, as the old primary does after a failover."""
    server.run("ALTER SYSTEM SET default_transaction_read_only = on")
    server.run("SELECT pg_reload_conf()")
    # The server tells its processes when it has read the file, and forks new ones after that.
    while server.run("SHOW default_transaction_read_only") != [("on",)]:
        pass
    try:
        yield
    finally:
        server.run("ALTER SYSTEM RESET default_transaction_read_only")
        server.run("SELECT pg_reload_conf()")


async def test_a_server_that_takes_no_writes_is_asked_again_with_pauses(own_server, monkeypatch):
    store = PostgresLightningStore(own_server.uri, timeout_seconds=0.5)
    await store.enqueue_rollout("x")
    connections = 0
    connect = Pool.connect

    async def count(pool: Pool, uri: str, seconds: float) -> Connection:
        nonlocal connections
        connections += 1
        return await connect(pool, uri, seconds)

    monkeypatch.setattr(Pool, "connect", count)
    with read_only(own_server), pytest.raises(StoreUnavailableError, match="takes no writes now"):
        await store.enqueue_rollout("y")
    assert connections <= 0.5 / 0.05
    assert (await store.enqueue_rollout("z")).status == "queuing"
    await store.close()


# -- the connection --------------------------------------------------------------------------------


async def test_a_silent_server_is_an_error_in_time(own_server):
    async with FaultyRelay(own_server.port) as relay:
        relay.stall()
        store = own_server.connect(port=relay.port, timeout_seconds=0.5)
        start = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="does not reply"):
            await store.enqueue_rollout("x")
        assert time.monotonic() - start < 5
        relay.flow()
        assert (await store.enqueue_rollout("y")).status == "queuing"
        await store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such timeout")
async def test_a_server_whose_machine_vanishes_is_given_up_after_half_a_minute(own_server):
    store = own_server.connect(port=own_server.port)

    async def timeout(session: Session) -> int:
        connection = await session.pool.connect(store._config.uri, 10)
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            seconds = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
        await connection.close()
        return int(seconds)

    assert await store._postgres.session.call(timeout) == 30
    await store.close()


# -- the disk --------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder, megabytes):
    """Mount a file system of this size on a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a full disk needs the right to mount a small one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder):
    """Leave no space; return the file that takes it."""
    file = folder / "ballast"
    with file.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    return file


async def write_on(store, kept):
    """Write until a call fails; keep the ids of what is acknowledged."""
    while True:
        kept.append((await store.start_rollout(os.urandom(20_000).hex())).rollout_id)


async def test_a_full_disk_is_an_error_and_calls_go_on_once_there_is_space():
    # The server ends before its disk does.
    with folders(1) as (folder,), small_disk(folder, 32), running_server(fsync="off") as server:
        place = folder / "space"
        place.mkdir()
        if server.user:
            os.chown(place, server.user["user"], server.user["group"])
        server.run(f"CREATE TABLESPACE small LOCATION '{place}'")
        store = PostgresLightningStore(server.uri + "&options=-cdefault_tablespace%3Dsmall")
        kept = [(await store.start_rollout(0)).rollout_id]
        ballast = fill(folder)
        with pytest.raises(StoreFullError, match="the disk is full; free some space"):
            await write_on(store, kept)
        assert (await store.get_rollout_by_id(kept[0])) is not None  # it still reads
        ballast.unlink()
        kept += [(await store.start_rollout("there is space")).rollout_id for _ in range(20)]
        assert [r.rollout_id for r in await store.query_rollouts()] == kept
        await store.close()


async def test_a_full_disk_of_the_log_loses_no_acknowledged_write():
    sizes = {"max_wal_size": "8MB", "min_wal_size": "2MB"}
    with (
        folders(1) as (log,),
        small_disk(log, 24),
        running_server(wal=log / "wal", fsync="off", **sizes) as server,
    ):
        store = PostgresLightningStore(server.uri, timeout_seconds=0.5)
        kept = [(await store.start_rollout(0)).rollout_id]
        ballast = fill(log)
        with pytest.raises((StoreDataError, StoreUnavailableError)):
            await write_on(store, kept)  # PostgreSQL stops itself once the log has no space
        server.stop()
        ballast.unlink()
        await asyncio.to_thread(server.start)
        kept.append((await store.start_rollout("there is space")).rollout_id)
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert set(kept) <= found
        assert len(found) <= len(kept) + 1  # the call that failed may have been stored
        await store.close()


# -- arguments, versions, closing ------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["localhost:5432", "postgresql://[h/", "host=a nonsense=b"])
async def test_the_constructor_refuses_a_wrong_connection_string(uri):
    with pytest.raises(StoreDataError, match="connection string"):
        PostgresLightningStore(uri)


@pytest.mark.parametrize("option", ["uri", "listen_uri"])
@pytest.mark.parametrize(
    "uri",
    [
        "user:secret@host/db",
        "postgres//user:secret@host/db",
        "postgresql://user:secret%x@host/db",
        "postgresql://user:port/secret@host/db",
        "postgresql://user:a@secret@host/db",
        "host=h password=a secret",
    ],
)
async def test_a_wrong_connection_string_is_not_quoted(option, uri):
    with pytest.raises(StoreDataError, match="percent-encoded") as raised:
        PostgresLightningStore(**{option: uri})
    assert "secret" not in str(raised.value)


async def test_a_refused_value_leaves_the_store_usable(server, schema):
    store = PostgresLightningStore(server.uri, schema_name=schema)
    with pytest.raises(InvalidArgumentError, match="input"):
        await store.enqueue_rollout(object())
    started = await store.start_rollout("y")
    huge = span_of(started).model_copy(update={"sequence_id": 2**70})
    with pytest.raises(InvalidArgumentError):
        await store.add_span(huge)
    value = {"a.b": 2**80, "": [-0.0, 5e-324, "\x00", None], "\u2603": {"$": "."}}
    other = await store.start_rollout(value, metadata=value)
    read = await store.get_rollout_by_id(other.rollout_id)
    assert read is not None
    assert (read.input, read.metadata) == (value, value)
    assert (await store.statistics()).get("total_rollouts") == 2
    await store.close()


@pytest.mark.parametrize("config", ["{", '{"max_attempts": 0}'])
async def test_a_damaged_rollout_leaves_the_queue_and_the_others_go_on(server, schema, config):
    store = PostgresLightningStore(server.uri, schema_name=schema)
    first, damaged, last = [await store.enqueue_rollout(number) for number in range(3)]
    server.run(
        f'UPDATE "{schema}".rollouts SET config = %s WHERE rollout_id = %s',
        *(config.encode(), damaged.rollout_id),
    )
    claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    assert [claim.rollout_id for claim in claimed] == [first.rollout_id, last.rollout_id]
    assert await store.dequeue_rollout() is None
    rows = server.run(f'SELECT status, end_time > start_time FROM "{schema}".rollouts')
    assert sorted(rows) == [("failed", True), *[("preparing", None)] * 2]
    with pytest.raises(StoreDataError, match="stored config"):
        await store.get_rollout_by_id(damaged.rollout_id)
    await store.close()


@pytest.mark.parametrize("undone", [True, False])
async def test_a_claim_that_was_given_back_is_made_again_under_its_key(server, schema, undone):
    store = PostgresLightningStore(server.uri, schema_name=schema)
    await store.enqueue_rollout("x")
    token = current_request_key.set("claim-1")
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    if undone:  # its caller was cancelled
        await store._postgres._transact(lambda tx: give_back(tx, [(claimed, claimed.attempt)]))
    else:
        await store.return_claim(claimed.rollout_id, claimed.attempt.attempt_id)
    again = await store.dequeue_rollout("w")
    assert again is not None
    assert (again.status, again.attempt.status) == ("preparing", "preparing")
    assert again.attempt.sequence_id == (1 if undone else 2)
    assert await store.dequeue_rollout("w") == again
    current_request_key.reset(token)
    await store.close()


async def test_a_closed_store_leaves_no_connection(own_server):
    others = set(own_server.backends())
    store = PostgresLightningStore(own_server.uri)
    waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
    deadline = time.monotonic() + 10
    while not set(own_server.backends()) - others and time.monotonic() < deadline:
        await asyncio.sleep(0.05)  # it connects
    assert set(own_server.backends()) - others
    await store.close()
    with pytest.raises(StoreDataError, match="closed"):
        await waiting
    deadline = time.monotonic() + 10
    while set(own_server.backends()) - others and time.monotonic() < deadline:
        await asyncio.sleep(0.05)  # a backend ends some time after its connection
    assert set(own_server.backends()) - others == set()


async def test_the_error_for_a_newer_schema_names_the_upgrade_command(server, schema):
    store = PostgresLightningStore(server.uri, schema_name=schema)
    await store.enqueue_rollout("x")
    await store.close()
    server.run(f"UPDATE \"{schema}\".meta SET value = value + 1 WHERE name = 'schema_version'")
    store = PostgresLightningStore(server.uri, schema_name=schema)
    with pytest.raises(StoreDataError, match=r": upgrade agl-store-postgres$"):
        await store.enqueue_rollout("y")
    await store.close()


async def test_tables_of_schema_1_get_the_figures_of_what_they_hold(server, schema):
    store = PostgresLightningStore(server.uri, schema_name=schema)
    names: dict[str, str] = {}
    for name, reward in (("a", 0.25), ("b", -3e-2), ("none", "broken"), ("c", 1.5)):
        claimed = await store.start_rollout(name)
        names[claimed.rollout_id] = name
        attributes: Any = {"agentlightning.reward.0.value": reward}
        span = span_of(claimed, 1, name="agentlightning.annotation", attributes=attributes)
        await store.add_span(span)
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    await store.close()
    server.run(
        f'ALTER TABLE "{schema}".rollouts DROP COLUMN reward, DROP COLUMN duration; '
        f"UPDATE \"{schema}\".meta SET value = 1 WHERE name = 'schema_version'"
    )
    store = PostgresLightningStore(server.uri, schema_name=schema)
    page = await store.query_rollouts(sort_by="reward", sort_order="desc")
    assert [names[rollout.rollout_id] for rollout in page] == ["c", "a", "b", "none"]
    records: Any = [rollout.attempt for rollout in page if isinstance(rollout, AttemptedRollout)]
    took = {each.rollout_id: each.end_time - each.start_time for each in records}
    page = await store.query_rollouts(sort_by="duration", sort_order="desc")
    found = [took[rollout.rollout_id] for rollout in page]
    assert found == sorted(took.values(), reverse=True)
    await store.close()


async def test_another_encoding_or_a_missing_database_is_an_error_with_the_command(server):
    server.run("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = PostgresLightningStore(server.uri.replace("/postgres?", "/latin?"))
    with pytest.raises(StoreDataError, match="createdb --encoding UTF8"):
        await store.enqueue_rollout("x")
    await store.close()
    store = PostgresLightningStore(server.uri.replace("/postgres?", "/nowhere?"))
    start = time.monotonic()
    with pytest.raises(StoreDataError, match="createdb"):
        await store.enqueue_rollout("x")
    assert time.monotonic() - start < 3  # it does not try again
    await store.close()
