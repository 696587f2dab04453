"""What the writer keeps in memory is never older than the file."""

import pytest

from agl_core.errors import InvalidArgumentError, RolloutNotFoundError
from agl_store_sqlite import SqliteLightningStore
from agl_testing.samples import span_of


@pytest.fixture
async def stores(tmp_path):
    """Two stores of one file, each with a connection and a memory of its own."""
    here, there = (
        SqliteLightningStore(tmp_path / "store.db", durability="normal") for _ in range(2)
    )
    yield here, there
    await here.close()
    await there.close()


async def test_what_another_connection_writes_is_seen_by_the_next_write(stores):
    here, there = stores
    started = await here.start_rollout("x", worker_id="w")
    await here.add_span(span_of(started, 1))
    await there.update_worker("w", {"cpu": 0.5})
    await there.add_span(span_of(started, 2))
    await there.update_attempt(
        started.rollout_id, started.attempt.attempt_id, status="failed", metadata={"why": "there"}
    )
    await here.add_span(span_of(started, 3))
    attempt = await here.get_latest_attempt(started.rollout_id)
    assert attempt is not None
    assert (attempt.status, attempt.metadata) == ("failed", {"why": "there"})
    came = await there.query_spans(started.rollout_id, sort_by=None)
    assert [span.sequence_id for span in came] == [1, 2, 3]
    assert await here.get_next_span_sequence_id(started.rollout_id, "") == 4
    worker = await here.update_worker("w")
    assert (worker.status, worker.heartbeat_stats) == ("idle", {"cpu": 0.5})


async def test_rollouts_dropped_elsewhere_are_gone(stores):
    here, there = stores
    started = await here.start_rollout("x")
    await here.add_span(span_of(started, 1))
    await here.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
    await here.add_span(span_of(started, 2))
    assert await there.vacuum(keep_last=0) == 1
    with pytest.raises(RolloutNotFoundError):
        await here.add_span(span_of(started, 3))


async def test_a_transaction_that_was_rolled_back_leaves_nothing_known(stores):
    here, _ = stores
    started = await here.start_rollout("x", worker_id="w")
    await here.add_span(span_of(started, 1))
    key = started.rollout_id, started.attempt.attempt_id

    def fail(tx):
        attempt = tx.attempt(*key)
        tx.save_attempt(attempt.model_copy(update={"status": "failed"}))
        tx.save_worker(tx.find_worker("w").model_copy(update={"status": "unknown"}))
        raise InvalidArgumentError("after writing")

    with pytest.raises(InvalidArgumentError):
        await here._engine.write(fail)
    assert (await here.update_attempt(*key)).status == "running"
    assert (await here.update_worker("w")).status == "busy"


async def test_what_a_caller_does_to_an_answer_changes_nothing_known(stores):
    here, _ = stores
    started = await here.start_rollout("x", worker_id="w")
    key = started.rollout_id, started.attempt.attempt_id
    worker = await here.update_worker("w", {"gpu": [1, 2]})
    worker.heartbeat_stats["gpu"].append(3)
    worker.status = "unknown"
    attempt = await here.update_attempt(*key, status="running")
    attempt.status = "failed"
    assert (await here.update_worker("w")).heartbeat_stats == {"gpu": [1, 2]}
    assert (await here.update_attempt(*key)).status == "running"


async def test_long_stats_and_metadata_are_read_from_the_file_each_time(stores):
    here, _ = stores
    started = await here.start_rollout("x", worker_id="w")
    key = started.rollout_id, started.attempt.attempt_id
    stats = {"log": "x" * 2000}
    await here.update_worker("w", stats)
    await here.update_attempt(*key, metadata={"notes": "y" * 2000})
    known = await here._engine.write(lambda tx: tx.known)
    assert known.workers == known.attempts == {}
    assert (await here.update_worker("w")).heartbeat_stats == stats
    assert (await here.update_attempt(*key, status="running")).metadata == {"notes": "y" * 2000}
