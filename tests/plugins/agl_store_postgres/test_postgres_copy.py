"""`agl store copy` from a SQLite file to PostgreSQL."""

import asyncio

import pytest

from agl_cli_kit import main
from agl_store_postgres import PostgresLightningStore

from ..agl_store_http.filled_stores import JUDGED, content, fill, judge, rewards

sqlite = pytest.importorskip("agl_store_sqlite")


async def in_file(work):
    store = sqlite.SqliteLightningStore("runs.db", durability="normal")
    try:
        return await work(store)
    finally:
        await store.close()


async def in_database(server, work):
    store = PostgresLightningStore(server.uri)
    try:
        return await work(store)
    finally:
        await store.close()


async def claimed(store):
    """Claim everything; return it with what the counters say.

    What was never claimed comes in the queue's order. That of retries is not in the records.
    """
    counts = await store.statistics()
    latest = await store.get_latest_resources()
    rollouts = [rollout async for rollout in claims(store)]
    rollouts.sort(key=lambda rollout: -rollout.attempt.sequence_id)
    return (
        {key: counts[key] for key in counts if key.startswith("total")},
        latest,
        [(rollout.rollout_id, rollout.attempt.sequence_id) for rollout in rollouts],
        [
            await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
            for rollout in rollouts
        ],
    )


async def claims(store):
    while (rollout := await store.dequeue_rollout("Worker-1")) is not None:
        yield rollout


def test_a_file_is_copied_and_the_copy_may_be_interrupted(
    own_server, tmp_path, monkeypatch, capsys
):
    from agl_store_http import transfer

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transfer, "_BATCH", 4)
    asyncio.run(in_file(fill))
    restore = PostgresLightningStore.restore
    left = [2]

    async def failing(self, records):
        if not left[0]:
            raise OSError("no route to host")
        left[0] -= 1
        return await restore(self, records)

    copy = ["store", "copy", "runs.db", own_server.uri]
    with monkeypatch.context() as patch:
        patch.setattr(PostgresLightningStore, "restore", failing)
        assert main(copy) == 1
    capsys.readouterr()
    said = []
    for _ in range(2):
        assert main(copy) == 0
        said.append(capsys.readouterr().out.partition("; ")[2].partition(" records")[0])
    assert said == ["8", "0"]  # of 16
    assert asyncio.run(in_database(own_server, content)) == asyncio.run(in_file(content))
    of_file = asyncio.run(in_file(claimed))
    assert len(of_file[2]) == 3
    assert asyncio.run(in_database(own_server, claimed)) == of_file


@pytest.mark.parametrize("batch", [1000, 1])
def test_what_an_agent_gave_itself_does_not_count_in_the_copy(
    own_server, tmp_path, monkeypatch, batch
):
    from agl_store_http import transfer

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transfer, "_BATCH", batch)
    asyncio.run(in_file(judge))
    assert main(["store", "copy", "runs.db", own_server.uri]) == 0
    assert asyncio.run(in_database(own_server, rewards)) == JUDGED
