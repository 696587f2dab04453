"""The routes, as a client of the reference sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from yarl import URL

from agl_core.types import LLM, Span
from agl_store_memory import InMemoryLightningStore


def span(rollout_id: str, attempt_id: str, **fields: Any) -> dict[str, Any]:
    made = Span.from_attributes(
        attributes={"a": 1}, rollout_id=rollout_id, attempt_id=attempt_id, **fields
    )
    return made.model_dump(mode="json")


async def enqueue(served: Any, *inputs: Any, **fields: Any) -> list[dict[str, Any]]:
    body = {"rollouts": [{"input": item, **fields} for item in inputs]}
    answer = await served.post("/queues/rollouts/enqueue", body)
    assert answer.status == 201
    return answer.json


async def test_health(served):
    answer = await served.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_enqueue_keeps_order_and_fields(served):
    one = await enqueue(served, {"q": 1}, metadata={"m": 1}, mode="val")
    assert [(r["input"], r["metadata"], r["mode"]) for r in one] == [({"q": 1}, {"m": 1}, "val")]
    two = await enqueue(served, "a", "b")
    assert [item["input"] for item in two] == ["a", "b"]
    assert set(two[0]) == {
        "rollout_id",
        "input",
        "start_time",
        "end_time",
        "mode",
        "resources_id",
        "status",
        "config",
        "metadata",
    }
    assert await enqueue(served) == []
    assert (await served.post("/queues/rollouts/enqueue", {})).status == 422


async def test_dequeue(served):
    ids = [item["rollout_id"] for item in await enqueue(served, 1, 2, 3)]
    none = await served.post("/queues/rollouts/dequeue", {"limit": 0})
    assert (none.status, none.json) == (200, [])
    two = (await served.post("/queues/rollouts/dequeue", {"limit": 2, "worker_id": "w"})).json
    assert [item["rollout_id"] for item in two] == ids[:2]
    assert {item["attempt"]["worker_id"] for item in two} == {"w"}
    assert len((await served.post("/queues/rollouts/dequeue")).json) == 1
    assert (await served.post("/queues/rollouts/dequeue")).json == []


async def test_dequeue_waits_for_work(served):
    waiting = asyncio.create_task(served.post("/queues/rollouts/dequeue", {"wait": 20}))
    while served.store._waiters.waiting_claims == 0:
        await asyncio.sleep(0.005)
    rollout = await served.store.enqueue_rollout("late")
    answer = await asyncio.wait_for(waiting, 5)
    assert [item["rollout_id"] for item in answer.json] == [rollout.rollout_id]


async def test_attempts_of_a_worker(served):
    started = (await served.post("/rollouts", {"input": 1, "worker_id": "w"})).json
    again = await served.post(f"/rollouts/{started['rollout_id']}/attempts", {"worker_id": "w"})
    assert (again.status, again.json["attempt"]["sequence_id"]) == (201, 2)
    worker = (await served.get("/workers/w")).json
    assert (worker["status"], worker["current_rollout_id"], worker["current_attempt_id"]) == (
        "busy",
        started["rollout_id"],
        again.json["attempt"]["attempt_id"],
    )
    latest = (await served.get(f"/rollouts/{started['rollout_id']}/attempts/latest")).json
    assert latest == again.json["attempt"]


async def test_pages(served):
    await enqueue(served, *range(10))
    page = (await served.get("/rollouts", limit=3, offset=3)).json
    assert [item["input"] for item in page["items"]] == [3, 4, 5]
    assert (page["limit"], page["offset"], page["total"]) == (3, 3, 10)
    everything = (await served.get("/rollouts")).json
    assert (everything["limit"], len(everything["items"])) == (-1, 10)


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -2}, "limit"),
        ({"offset": -1}, "offset"),
        ({"sort_by": "nonsense"}, "start_time"),
    ],
)
async def test_a_bad_page_is_400_with_a_reason(served, params, part):
    answer = await served.get("/rollouts", **params)
    assert answer.status == 400
    assert part in answer.json["detail"]


@pytest.mark.parametrize("name", ["sort_order", "filter_logic", "limit"])
async def test_a_value_outside_its_domain_is_422(served, name):
    answer = await served.get("/rollouts", **{name: "sideways"})
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["query", name]


async def test_get_and_search_give_the_same_pages(served):
    rollout_id, attempt_id = await served.claim(worker_id="w")
    for number in range(5):
        fields = {"name": f"n{number}", "sequence_id": 9 - number}
        await served.post("/spans", span(rollout_id, attempt_id, **fields))
    for path, query in {
        "/rollouts": {"status_in": ["running"], "sort_by": "start_time"},
        "/workers": {"status_in": ["busy"], "worker_id_contains": "w"},
        f"/rollouts/{rollout_id}/attempts": {"limit": 1},
        "/spans": {"rollout_id": rollout_id, "name_contains": "n", "sort_by": "name", "limit": 2},
    }.items():
        got = (await served.get(path, **query)).json
        searched = (await served.post(f"{path}/search", query)).json
        assert got == searched
        assert got["items"]


async def test_filters(served):
    ids = [item["rollout_id"] for item in await enqueue(served, 1, 2)]
    await served.post(f"/rollouts/{ids[0]}", {"status": "failed"})
    query: dict[str, Any] = {"status_in": ["failed"], "rollout_id_contains": ids[1][-6:]}

    async def found(**more: Any) -> list[str]:
        page = (await served.post("/rollouts/search", {**query, **more})).json
        return [item["rollout_id"] for item in page["items"]]

    assert await found(filter_logic="or") == ids
    assert await found() == []
    assert await found(status_in=[], rollout_id_contains=None) == []
    assert await found(status_in=None, rollout_id_contains=None) == ids


async def test_null_modes_sort_as_empty(served):
    await enqueue(served, "plain")
    await enqueue(served, "train", mode="train")
    for order, first in (("asc", None), ("desc", "train")):
        page = (await served.get("/rollouts", sort_by="mode", sort_order=order)).json
        assert page["items"][0]["mode"] == first


async def test_update_rollout_changes_what_is_given(served):
    rollout = (await enqueue(served, 1, mode="train", metadata={"a": 1}))[0]
    path = f"/rollouts/{rollout['rollout_id']}"
    same = (await served.post(path, {})).json
    assert same == rollout
    cleared = {"mode": None, "metadata": None, "resources_id": None, "input": None}
    assert (await served.post(path, cleared)).json == {**rollout, **cleared}
    for name in ("status", "config"):
        answer = await served.post(path, {name: None})
        assert (answer.status, name in answer.json["detail"]) == (400, True)
    assert (await served.post(path, {"status": "sleeping"})).status == 422
    done = (await served.post(path, {"status": "succeeded"})).json
    assert done["end_time"] is not None


async def test_update_attempt(served):
    rollout_id, attempt_id = await served.claim()
    path = f"/rollouts/{rollout_id}/attempts"
    changed = (await served.post(f"{path}/latest", {"worker_id": "", "metadata": {}})).json
    assert (changed["worker_id"], changed["metadata"]) == ("", {})
    kept = (await served.post(f"{path}/{attempt_id}", {"status": "succeeded"})).json
    assert (kept["worker_id"], kept["metadata"], kept["status"]) == ("", {}, "succeeded")
    assert (await served.post(f"{path}/latest", {"metadata": None})).json["metadata"] is None
    for name in ("status", "worker_id", "last_heartbeat_time"):
        assert (await served.post(f"{path}/latest", {name: None})).status == 400


async def test_worker_heartbeats(served):
    first = (await served.post("/workers/w")).json
    assert (first["status"], first["heartbeat_stats"]) == ("unknown", None)
    assert (await served.post("/workers/w", {"heartbeat_stats": {"cpu": 1}})).status == 200
    kept = (await served.post("/workers/w", {})).json
    assert kept["heartbeat_stats"] == {"cpu": 1}
    assert (await served.post("/workers/w", {"heartbeat_stats": None})).status == 400
    unknown = await served.get("/workers/nobody")
    assert (unknown.status, unknown.json) == (200, None)


async def test_resources(served):
    llm = LLM(endpoint="http://x/v1", model="m").model_dump()
    added = await served.post("/resources", {"main": llm})
    assert (added.status, added.json["version"]) == (201, 1)
    assert (await served.get("/resources/latest")).json == added.json
    named = (await served.post("/resources/mine", {"main": llm})).json
    assert (named["resources_id"], named["version"]) == ("mine", 1)
    assert (await served.post("/resources/mine", {})).json["version"] == 2
    assert (await served.get("/resources/nope")).json is None
    page = (await served.get("/resources", resources_id_contains="min")).json
    assert [item["resources_id"] for item in page["items"]] == ["mine"]
    assert (await served.post("/resources", {"bad": {"no": "type"}})).status == 422


async def test_spans_one_by_one_and_in_batches(served):
    rollout_id, attempt_id = await served.claim()
    sent = [span(rollout_id, attempt_id, sequence_id=n) for n in range(1, 5)]
    first = await served.post("/spans", sent[0])
    assert (first.status, first.json) == (201, sent[0])
    assert (await served.post("/spans", sent[0])).json is None
    batch = await served.post("/spans/batch", {"spans": [sent[1], sent[0], sent[2], sent[1]]})
    assert (batch.status, batch.json) == (201, {"stored": 2, "duplicates": [1, 3]})
    page = (await served.get("/spans", rollout_id=rollout_id, attempt_id="latest")).json
    assert page["items"] == sent[:3]
    assert (await served.get("/spans")).status == 422


async def test_span_sequence_ids(served):
    rollout_id, attempt_id = await served.claim()
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    assert (await served.post("/spans/next", ids)).json == {"sequence_id": 1}
    many = (await served.post("/spans/next/batch", {"ids": [ids, ids]})).json
    assert many == {"sequence_ids": [2, 3]}
    await served.post("/spans", span(rollout_id, attempt_id, sequence_id=100))
    assert (await served.post("/spans/next", ids)).json == {"sequence_id": 101}


async def test_waiting_for_rollouts(served):
    rollout_id, _ = await served.claim()
    body = {"rollout_ids": [rollout_id, "unknown"], "timeout": 0.05}
    assert (await served.post("/waits/rollouts", body)).json == []
    waiting = asyncio.create_task(served.post("/waits/rollouts", {**body, "timeout": None}))
    await asyncio.sleep(0.05)
    await served.store.update_attempt(rollout_id, "latest", status="succeeded")
    finished = (await asyncio.wait_for(waiting, 5)).json
    assert [item["status"] for item in finished] == ["succeeded"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/rollouts/ro-x", {}, "RolloutNotFoundError"),
        ("/rollouts/ro-x/attempts", {}, "RolloutNotFoundError"),
        ("/rollouts/ro-x/attempts/latest", {"status": "running"}, "RolloutNotFoundError"),
        ("/spans", span("ro-x", "at-x"), "RolloutNotFoundError"),
        ("/spans/batch", {"spans": [span("ro-x", "at-x")]}, "RolloutNotFoundError"),
    ],
)
async def test_unknown_ids_in_changes_are_404(served, path, body, error):
    answer = await served.post(path, body)
    assert (answer.status, answer.json["error_type"]) == (404, error)
    assert "ro-x" in answer.json["detail"]


async def test_unknown_ids_in_reads_are_null_or_empty(served):
    for path in ("/rollouts/nope", "/rollouts/nope/attempts/latest", "/resources/latest"):
        assert (await served.get(path)).json is None
    assert (await served.get("/rollouts/nope/attempts")).json["total"] == 0
    assert (await served.get("/spans", rollout_id="nope")).json["total"] == 0


async def test_ids_may_hold_anything(served):
    name = "a/b c%ü"
    url = f"{served.url}/v1/agl/workers/a%2Fb%20c%25%C3%BC"
    async with served.session.post(URL(url, encoded=True)) as response:
        assert (await response.json())["worker_id"] == name


async def test_literal_paths_win_over_ids(served):
    assert (await served.get("/rollouts/search")).json is None  # GET: a rollout of that name
    assert (await served.post("/rollouts/search", {})).json["total"] == 0
    assert (await served.send("DELETE", "/v1/agl/rollouts/search")).status == 405
    answer = await served.send("PUT", "/v1/agl/health")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert (await served.get("/nothing/here")).status == 404


async def test_statistics(served):
    rollout_id, attempt_id = await served.claim()
    await served.post("/spans", span(rollout_id, attempt_id))
    counts = (await served.get("/statistics")).json
    assert counts["name"] == "InMemoryLightningStore"
    assert (counts["total_rollouts"], counts["total_spans"]) == (1, 1)


async def test_evicted_spans_are_gone_for_good(serve):
    small = InMemoryLightningStore(eviction_memory_threshold=10_000, safe_memory_threshold=1_000)
    served = await serve(small)
    rollout_id, attempt_id = await served.claim()
    for number in range(40):
        await served.post("/spans", span(rollout_id, attempt_id, sequence_id=number))
    answer = await served.get("/spans", rollout_id=rollout_id)
    assert (answer.status, answer.json["error_type"]) == (410, "SpansEvictedError")
