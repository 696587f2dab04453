"""Metrics of the server: requests, calls of its store, the queue."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from agl_store_http.server.doors.measured import path_label
from tests.core.metrics.held import Held


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/agl/rollouts", "/v1/agl/rollouts"),
        ("/v1/agl/rollouts/ro-1", "/v1/agl/rollouts/{rollout_id}"),
        ("/v1/agl/rollouts/search", "/v1/agl/rollouts/search"),
        ("/v1/agl/rollouts/ro-1/attempts/latest", "/v1/agl/rollouts/{rollout_id}/attempts/latest"),
        (
            "/v1/agl/rollouts/ro-1/attempts/at-2",
            "/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}",
        ),
        ("/v1/agl/queues/rollouts/enqueue", "/v1/agl/queues/rollouts/enqueue"),
        ("/v1/agl/resources/latest", "/v1/agl/resources/latest"),
        ("/v1/agl/resources/rs-1", "/v1/agl/resources/{resources_id}"),
        ("/v1/agl/workers/w 1", "/v1/agl/workers/{worker_id}"),
        ("/v1/traces", "/v1/traces"),
        ("/dashboard/rollouts/ro-1", "other"),
        ("/v1/agl/rollouts/", "other"),
        ("/<script>", "other"),
    ],
)
def test_paths_become_few_labels(path, label):
    assert path_label(path) == label


async def test_requests_and_store_calls_are_recorded(serve):
    held = Held()
    served = await serve(tracker=(held,))
    body = {"rollouts": [{"input": 1}]}
    assert (await served.post("/queues/rollouts/enqueue", body)).status == 201
    assert (await served.get("/rollouts/ro-none")).status == 200
    assert (await served.get("/nothing/here")).status == 404
    assert (await served.post("/queues/rollouts/enqueue", {"rollouts": 5})).status == 422
    enqueue = ("/v1/agl/queues/rollouts/enqueue", "POST")
    assert held.values["agl.http.total", *enqueue, "201"] == [1]
    assert held.values["agl.http.total", *enqueue, "422"] == [1]
    assert held.values["agl.http.total", "other", "GET", "404"] == [1]
    one = ("/v1/agl/rollouts/{rollout_id}", "GET", "200")
    assert 0 < held.values["agl.http.latency", *one][0] < 1
    call = ("enqueue_many_rollouts", "enqueue_many_rollouts", "OK")
    assert held.values["agl.store.total", *call] == [1]
    assert held.values["agl.queue.length",]


async def test_a_client_that_leaves_is_a_status_of_its_own(serve):
    held = Held()
    served = await serve(tracker=(held,))
    rollout_id = (await served.store.enqueue_rollout(1)).rollout_id
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await served.post("/waits/rollouts", {"rollout_ids": [rollout_id], "timeout": 30})
    for _ in range(100):
        gone = [k for k in held.values if k[0] == "agl.http.total" and k[3] == "499"]
        if gone:
            break
        await asyncio.sleep(0.02)
    assert gone == [("agl.http.total", "/v1/agl/waits/rollouts", "POST", "499")]


@pytest.mark.usefixtures("no_interceptors")
async def test_without_a_tracker_nothing_is_wrapped(served):
    assert served.app.store is served.store
