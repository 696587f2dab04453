"""Several PostgreSQL stores on one database: waking, the watchdog, schemas, poolers, servers."""

import asyncio
import json
import os
import re
import sys

import aiohttp
import pytest
import pytest_asyncio

from agl_store_postgres import PostgresLightningStore
from agl_testing.database import SharedStoreSuite
from agl_testing.samples import span_of

from .postgres_server import running_pooler


@pytest_asyncio.fixture
async def stores(server, schema):
    """Three stores of one schema, each with connections and a loop of its own."""
    stores = [
        PostgresLightningStore(server.uri, schema_name=schema, scan_debounce_seconds=60)
        for _ in range(3)
    ]
    await stores[0].statistics()
    yield stores
    for store in stores:
        await store.close()


class TestPostgresSharing(SharedStoreSuite):
    @pytest.fixture
    def connect(self, server, schema):
        def connect(*, elsewhere=False, **options):
            where = schema + "_other" if elsewhere else schema
            return PostgresLightningStore(server.uri, schema_name=where, **options)

        return connect


# -- waking ----------------------------------------------------------------------------------------


async def test_a_change_whose_notice_is_lost_wakes_waiting_calls(stores):
    here, there, _ = stores

    async def lost(payloads):
        del payloads

    there._postgres.session.feed.send = lost
    work = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await asyncio.sleep(0.2)
    await there.enqueue_rollout("x")
    assert await asyncio.wait_for(work, 10) is not None


# -- a pooler in transaction mode ------------------------------------------------------------------


async def test_stores_share_a_few_connections_of_a_pooler(server, schema, caplog):
    with running_pooler(server, connections=3) as pooler:
        stores = [
            PostgresLightningStore(
                pooler.uri, listen_uri=server.uri, schema_name=schema, timeout_seconds=20
            )
            for _ in range(4)
        ]

        async def work(store: PostgresLightningStore, worker: str) -> int:
            done = 0
            while claimed := await store.dequeue_rollout(worker, wait=1):
                spans = [span_of(claimed, number) for number in range(20)]
                assert len(await store.add_many_spans(spans)) == 20
                await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
                done += 1
            return done

        working = [
            asyncio.ensure_future(work(store, f"w{number}"))
            for number, store in enumerate(stores * 3)
        ]
        ids: list[str] = []
        for number in range(60):
            ids.append((await stores[number % 4].enqueue_rollout(number)).rollout_id)
            if number == 30:  # the pooler goes away for a moment
                pooler.stop()
                await asyncio.to_thread(pooler.start)
        done = await stores[0].wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert {rollout.status for rollout in done} == {"succeeded"}
        assert sum(await asyncio.gather(*working)) == 60
        statistics = await stores[1].statistics()
        assert (statistics.get("total_attempts"), statistics.get("total_spans")) == (60, 1200)
        for store in stores:
            await store.close()
    assert "do not arrive" not in caplog.text


async def test_a_pooler_without_a_direct_connection_is_reported(server, schema, caplog):
    with running_pooler(server) as pooler:
        store = PostgresLightningStore(pooler.uri, schema_name=schema, timeout_seconds=10)
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=30))
        async with asyncio.timeout(20):
            while "set listen_uri" not in caplog.text:
                await asyncio.sleep(0.05)
        await store.enqueue_rollout("x")
        assert await asyncio.wait_for(waiting, 10) is not None  # late, and nothing is lost
        await store.close()


# -- several store servers -------------------------------------------------------------------------


class StoreProcess:
    """An ``agl store`` process on the database."""

    def __init__(self, uri: str, schema: str) -> None:
        self._options = ["--backend", "postgres", "--set", f"uri={uri}"]
        self._options += ["--set", f"schema_name={schema}", "--port", "0"]

    async def __aenter__(self) -> str:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agl_cli_kit", "store", *self._options),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        found = re.search(r"at (http\S+) \(", line)
        assert found, line
        return found[1] + "/v1/agl"

    async def __aexit__(self, *error: object) -> None:
        self.process.terminate()
        await self.process.communicate()


@pytest.mark.slow
async def test_four_store_processes_serve_one_database(server, schema):
    processes = [StoreProcess(server.uri, schema) for _ in range(4)]
    urls = await asyncio.gather(*(process.__aenter__() for process in processes))
    try:
        async with aiohttp.ClientSession() as session:

            async def post(url: str, path: str, body: object) -> list[dict]:
                async with session.post(url + path, json=body) as reply:
                    assert reply.status in (200, 201), await reply.text()
                    return json.loads(await reply.text())

            async def work(number: int) -> list[tuple[str, str]]:
                """Claim at one server, finish at the next."""
                claimed: list[tuple[str, str]] = []
                here, there = urls[number % 4], urls[(number + 1) % 4]
                body = {"worker_id": f"w{number}", "wait": 2, "limit": 1}
                while answer := await post(here, "/queues/rollouts/dequeue", body):
                    (found,) = answer
                    ids = (found["rollout_id"], found["attempt"]["attempt_id"])
                    claimed.append(ids)
                    path = f"/rollouts/{ids[0]}/attempts/{ids[1]}"
                    await post(there, path, {"status": "succeeded"})
                return claimed

            workers = [asyncio.ensure_future(work(number)) for number in range(12)]
            ids: set[str] = set()
            for number in range(25):
                rollouts = {"rollouts": [{"input": number} for _ in range(8)]}
                answer = await post(urls[number % 4], "/queues/rollouts/enqueue", rollouts)
                ids |= {rollout["rollout_id"] for rollout in answer}
            claimed = [pair for pairs in await asyncio.gather(*workers) for pair in pairs]
    finally:
        for process in processes:
            await process.__aexit__()
    assert len(ids) == len(claimed) == 200
    assert {rollout_id for rollout_id, _ in claimed} == ids
    store = PostgresLightningStore(server.uri, schema_name=schema)
    page = await store.query_rollouts()
    assert {(r.rollout_id, r.status) for r in page} == {(name, "succeeded") for name in ids}
    assert (await store.statistics()).get("total_attempts") == 200
    await store.close()
