"""A file written before the store engine opens, reads and goes on.

``data/schema4.db`` was written by agl-store-sqlite 0.1 with its own orchestration; what its queries
returned then is in ``data/schema4.json``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agl_core.store import current_request_key
from agl_core.types import EnqueueRolloutRequest
from agl_store_sqlite import SqliteLightningStore
from agl_testing import Clock
from agl_testing.samples import span_of

DATA = Path(__file__).parent / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "schema4.json").read_text())


for rollout in EXPECTED["rollouts"]:
    rollout["config"] |= {"replay": None, "infrastructure_retries": 2}  # options that came later

LATEST = max(
    attempt["last_heartbeat_time"] or attempt["start_time"]
    for attempts in EXPECTED["attempts"].values()
    for attempt in attempts
)


@pytest.fixture
async def store(tmp_path):
    shutil.copy(DATA / "schema4.db", tmp_path / "store.db")
    # The running attempt of the file must not look unresponsive.
    with Clock(LATEST + 1).installed():
        store = SqliteLightningStore(tmp_path / "store.db", durability="normal")
        yield store
        await store.close()


def dumped(records) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json") for record in records]


async def test_every_query_returns_what_it_returned(store):
    assert dumped(await store.query_rollouts()) == EXPECTED["rollouts"]
    for rollout_id, attempts in EXPECTED["attempts"].items():
        assert dumped(await store.query_attempts(rollout_id)) == attempts
    for rollout_id, spans in EXPECTED["spans"].items():
        assert dumped(await store.query_spans(rollout_id)) == spans
    assert dumped(await store.query_workers()) == EXPECTED["workers"]
    assert dumped(await store.query_resources()) == EXPECTED["resources"]
    statistics = await store.statistics()
    assert {name: statistics.get(name) for name in EXPECTED["statistics"]} == EXPECTED["statistics"]


async def test_new_work_queues_behind_waiting_work(store):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="new")])
    claimed = await store.dequeue_many_rollouts(limit=10, worker_id="w")
    assert [item.input for item in claimed] == [0, 1, "new"]
    assert [item.rollout_id for item in claimed[:2]] == [
        rollout["rollout_id"] for rollout in EXPECTED["rollouts"] if rollout["status"] == "queuing"
    ]


async def test_a_running_attempt_goes_on(store):
    running = next(r for r in EXPECTED["rollouts"] if r["status"] == "running")
    ids = running["rollout_id"], running["attempt"]["attempt_id"]
    assert await store.get_next_span_sequence_id(*ids) == 8
    started = await store.get_rollout_by_id(ids[0])
    assert await store.add_span(span_of(started, 8)) is not None
    await store.update_attempt(*ids, status="succeeded")
    assert (await store.get_rollout_by_id(ids[0])).status == "succeeded"
    assert (await store.get_worker_by_id("worker-3")).status == "idle"
    page = await store.query_rollouts(status_in=["succeeded"], limit=1)
    assert page.total == 2


async def test_a_claim_repeated_under_its_key_returns_the_first_result(store):
    token = current_request_key.set("claim-key")
    claimed = await store.dequeue_rollout("worker-4")
    current_request_key.reset(token)
    assert [claimed.rollout_id, claimed.attempt.attempt_id] == EXPECTED["keyed"]
