"""Events, mounted apps, the OpenAPI document, the watchdog, shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from agl_core.errors import PluginBrokenError
from agl_core.plugins import AppSpec
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_serving import mint_token
from agl_store_http import LightningStoreClient
from agl_store_http.server.api import ROUTES
from agl_store_memory import InMemoryLightningStore

SECRET = "a secret of more than sixteen characters"


# -- events ----------------------------------------------------------------------------------------


async def test_events_are_streamed_as_they_happen(served):
    url = f"{served.url}/v1/agl/events"
    async with served.session.get(url) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert await response.content.readline() == b": listening\n"
        await response.content.readline()
        rollout = await served.store.enqueue_rollout(1)
        lines = [await asyncio.wait_for(response.content.readline(), 5) for _ in range(4)]
    event = json.loads(lines[2].removeprefix(b"data: "))
    assert lines[0] == b"id: %d\n" % event["event_id"]
    assert lines[1] == b"event: rollout\n"
    assert (event["rollout_id"], event["status"]) == (rollout.rollout_id, "queuing")
    while served.store._waiters._bus._subscriptions:
        await asyncio.sleep(0.01)  # the listener that left is forgotten


class SilentStore(InMemoryLightningStore):
    @property
    def capabilities(self) -> Any:
        return {**super().capabilities, "events": False}


async def test_a_store_without_events_says_so(serve):
    served = await serve(SilentStore())
    assert (await served.get("/events")).status == 501


@pytest.mark.timing
async def test_a_stop_ends_streams_and_long_polls_at_once(served):
    rollout_id, _ = await served.claim()
    poll = asyncio.create_task(served.post("/queues/rollouts/dequeue", {"wait": 60}))
    wait = asyncio.create_task(served.post("/waits/rollouts", {"rollout_ids": [rollout_id]}))
    response = await served.session.get(f"{served.url}/v1/agl/events")
    await response.content.readline()
    while served.store._waiters.waiting_claims == 0:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await served.launcher.stop()
    assert time.monotonic() - began < 2
    assert (await poll).json == []
    assert (await wait).json == []
    await response.read()
    response.close()


# -- the watchdog ----------------------------------------------------------------------------------


async def test_the_watchdog_runs_by_itself(serve):
    store = InMemoryLightningStore(scan_debounce_seconds=0.0)
    await serve(store, watchdog_seconds=0.05)
    rollout = await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=0.1))
    await store.dequeue_rollout()
    events = store.events()
    async with asyncio.timeout(10):
        async for event in events:
            if event.kind == "rollout" and event.status == "failed":
                assert event.rollout_id == rollout.rollout_id
                break
    assert isinstance(events, AsyncGenerator)
    await events.aclose()


class UnwellStore(InMemoryLightningStore):
    rounds = 0

    async def run_watchdog(self) -> int:
        self.rounds += 1
        if self.rounds == 1:
            raise OSError("the disk is away")
        return 0


async def test_the_watchdog_survives_a_failed_round(serve, caplog):
    store = UnwellStore()
    await serve(store, watchdog_seconds=0.02)
    while store.rounds < 3:
        await asyncio.sleep(0.01)
    assert "the watchdog's round failed" in caplog.text


# -- mounted apps ----------------------------------------------------------------------------------


def make_page(store: Any) -> Any:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})
            return
        text = f"{scope['root_path']} {scope['path']} {type(store).__name__}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    return page


def make_nothing(store: Any) -> Any:
    raise OSError("no assets")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    """A factory that can be imported by name, whatever pytest calls this module."""
    import sys
    import types

    module = types.ModuleType("a_mounted_app")
    module.make_page = make_page  # type: ignore[attr-defined]
    module.make_nothing = make_nothing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_mounted_app", module)
    return "a_mounted_app:make_page"


@pytest.mark.usefixtures("no_interceptors")
async def test_apps_are_mounted_beside_the_api(serve, page):
    served = await serve(
        mounts=(
            AppSpec("root", "/", page, scope="public"),
            AppSpec("metrics", "/v1/prometheus", page),
            AppSpec("deep", "/dash/board", page),
        )
    )

    async def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        answer = await served.send(method, path)
        return answer.status, answer.body

    name = b"InMemoryLightningStore"
    assert await get("/") == (200, b" / " + name)
    assert await get("/any/page") == (200, b" /any/page " + name)
    assert await get("/v1/prometheus/") == (200, b"/v1/prometheus /v1/prometheus/ " + name)
    assert await get("/dash/board/x") == (200, b"/dash/board /dash/board/x " + name)
    assert (await get("/dash/boardwalk"))[1].startswith(b" /dash/boardwalk")
    assert (await get("/any/page", "POST"))[0] == 404
    assert (await get("/v1/unknown"))[0] == 404
    assert (await get("/v1/agl/health"))[1] == b'{"status":"ok"}'


async def test_an_app_answers_at_its_prefix_with_and_without_a_slash(serve, page, monkeypatch):
    import sys

    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("home")

    def make_board(store: Any) -> Starlette:
        return Starlette(routes=[Route("/", home)])

    monkeypatch.setattr(sys.modules["a_mounted_app"], "make_board", make_board, raising=False)
    board = AppSpec("board", "/dash/board", "a_mounted_app:make_board")
    served = await serve(mounts=(board,))
    for path in ("/dash/board", "/dash/board/"):
        answer = await served.send("GET", path)
        assert (answer.status, answer.body) == (200, b"home")
    # Relative links of a page are below the prefix, so a browser must see the slash.
    browser = await served.send(
        "GET",
        "/dash/board?day=1",
        headers={"Accept": "text/html,*/*"},
        allow_redirects=False,
    )
    assert (browser.status, browser.headers["location"]) == (307, "board/?day=1")


async def test_a_browser_at_the_bare_address_comes_to_the_page(serve, page):
    specs = (
        AppSpec("figures", "/figures", page),
        AppSpec("board", "/dash/board", page, scope="public"),
    )
    browser = {"headers": {"Accept": "text/html,*/*"}, "allow_redirects": False}
    served = await serve(mounts=specs)
    sent = await served.send("GET", "/", **browser)
    assert (sent.status, sent.headers["location"]) == (307, "dash/board/")
    assert (await served.send("GET", "/")).status == 404  # a program gets no page
    assert (await served.send("GET", "/other", **browser)).status == 404
    alone = await serve(mounts=specs[:1])
    assert (await alone.send("GET", "/", **browser)).status == 404


async def test_mounted_apps_have_scopes(serve, page):
    served = await serve(
        auth_token=SECRET,
        mounts=(
            AppSpec("open", "/open", page, scope="public"),
            AppSpec("read", "/read", page),
            AppSpec("admin", "/admin", page, scope="admin"),
        ),
    )

    async def get(path: str, scope: Any) -> int:
        token = mint_token(SECRET, scope, lifetime=60) if scope else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return (await served.send("GET", path, headers=headers)).status

    assert [await get("/open", who) for who in (None, "read", "admin")] == [200, 200, 200]
    assert [await get("/read", who) for who in (None, "read", "runner")] == [401, 200, 403]
    assert [await get("/admin", who) for who in (None, "read", "admin")] == [401, 403, 200]


async def test_an_app_that_cannot_be_made(page):
    from agl_store_http import StoreApp, StoreAppOptions

    broken = AppSpec("dash", "/dash", page.replace("page", "nothing"))
    with pytest.raises(PluginBrokenError, match=r"dash.*no assets"):
        StoreApp(InMemoryLightningStore(), StoreAppOptions(mounts=(broken,)))


# -- the document ----------------------------------------------------------------------------------


async def test_the_document_describes_every_endpoint_and_model(served):
    document = (await served.send("GET", "/openapi.json")).json
    listed = {(m.upper(), p) for p, item in document["paths"].items() for m in item}
    assert listed == {(method, route.path) for route in ROUTES for method in route.methods or ()}
    operations = [op for item in document["paths"].values() for op in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(operation["summary"] for operation in operations)
    bodies = [operation["requestBody"] for operation in operations if "requestBody" in operation]
    assert len(bodies) > 10
    assert all(content["schema"] for body in bodies for content in body["content"].values())
    schemas = document["components"]["schemas"]
    undescribed = [name for name, schema in schemas.items() if not schema.get("description")]
    assert undescribed == []
    for wanted in ("Rollout", "Attempt", "Span", "RolloutUpdate", "AttemptUpdate", "Problem"):
        # Older versions of pydantic describe what is read and what is written apart.
        assert {wanted, f"{wanted}-Input", f"{wanted}-Output"} & set(schemas)
    referenced = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                referenced.add(node["$ref"].rpartition("/")[2])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert referenced <= set(schemas)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_no_page_loads_scripts_from_another_host(served, path):
    assert (await served.send("GET", path)).status == 404


def test_each_route_is_in_the_table_once():
    keys = [(method, route.path) for route in ROUTES for method in route.methods or ()]
    assert len(set(keys)) == len(keys)


async def test_each_request_is_logged_at_debug(served, caplog):
    caplog.set_level("DEBUG", logger="agl_store_http")
    began = time.perf_counter()
    await served.get("/rollouts/ro-unknown")
    await served.get("/nowhere")
    passed = (time.perf_counter() - began) * 1000
    lines = "\n".join(record.getMessage() for record in caplog.records)
    took = re.findall(r"GET /v1/agl/(rollouts/ro-unknown: 200|nowhere: 404), ([\d.]+) ms", lines)
    assert [status for status, _ in took] == ["rollouts/ro-unknown: 200", "nowhere: 404"]
    assert 0 < sum(float(milliseconds) for _, milliseconds in took) < passed


async def test_a_body_that_does_not_end_is_given_up(served, monkeypatch):
    monkeypatch.setattr("agl_serving.http._BODY_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.launcher.port)
    writer.write(b"POST /v1/agl/spans HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_large_batch_goes_in_several_requests(served):
    client = LightningStoreClient(served.url)
    tasks = [EnqueueRolloutRequest(input=number) for number in range(5_001)]
    enqueued = await client.enqueue_many_rollouts(tasks)
    assert [rollout.input for rollout in enqueued] == list(range(5_001))
    (claim,) = await client.dequeue_many_rollouts()
    assert claim.input == 0
    ids = [(claim.rollout_id, claim.attempt.attempt_id)] * 5_001
    assert list(await client.get_many_span_sequence_ids(ids)) == list(range(1, 5_002))
    await client.close()


async def test_events_end_with_their_token(serve):
    served = await serve(auth_token="a-secret-of-the-operator")
    token = mint_token("a-secret-of-the-operator", "read", lifetime=2)
    headers = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(15):
        answer = await served.send("GET", "/v1/agl/events", headers=headers)
    assert answer.status == 200
    assert answer.body.startswith(b": listening")


@pytest.mark.usefixtures("no_interceptors")
async def test_health_tells_about_the_database(served, monkeypatch):
    from agl_core.errors import StoreUnavailableError
    from agl_store_http.server import database_health

    monkeypatch.setattr(database_health, "_REMEMBERED", 0.0)
    assert (await served.get("/health")).json == {"status": "ok"}

    async def lost(self: Any, worker_id: str) -> None:
        raise StoreUnavailableError("postgresql://agl@secret-host is down")

    async def hanging(self: Any, worker_id: str) -> None:
        await asyncio.sleep(60)

    async def wrong(self: Any, worker_id: str) -> None:
        raise RuntimeError("a driver's own error at secret-host")

    for broken in (lost, hanging, wrong):
        with monkeypatch.context() as patch:
            patch.setattr(database_health, "_SECONDS", 0.2)
            patch.setattr(type(served.store), "get_worker_by_id", broken)
            answer = await served.get("/health")
            assert answer.status == 503
            assert "the database did" in answer.json["detail"] or "does" in answer.json["detail"]
            assert "secret-host" not in answer.body.decode()
            assert (await served.get("/health", live="true")).status == 200
    assert (await served.get("/health")).status == 200
