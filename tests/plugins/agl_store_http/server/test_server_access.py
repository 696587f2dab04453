"""Access: every endpoint x every scope x every kind of token, and what pages may do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jwt
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute

from agl_core.errors import ConfigError, PermissionDeniedError
from agl_core.types import Span
from agl_serving import SCOPES, TokenVerifier, mint_token
from agl_store_http import LightningStoreClient, release_worker
from agl_store_http.server.api import ROUTES
from agl_store_http.server.dependencies import RawBody

SECRET = "a secret of more than sixteen characters"

# What each scope may do, written out on purpose: the table in the source must agree with it.
ALLOWED = {
    "GET /v1/agl/health": {"*"},
    "GET /v1/agl/statistics": {"algorithm", "read"},
    "GET /v1/agl/time": {"algorithm", "read"},
    "GET /v1/agl/events": {"algorithm", "read"},
    "POST /v1/agl/token": {"algorithm", "runner"},
    "POST /v1/agl/waits/rollouts": {"algorithm", "read"},
    "POST /v1/agl/queues/rollouts/enqueue": {"algorithm"},
    "POST /v1/agl/queues/rollouts/dequeue": {"runner"},
    "GET /v1/agl/rollouts/counts": {"algorithm", "read"},
    "GET /v1/agl/rollouts/containing": {"algorithm", "read"},
    "POST /v1/agl/rollouts/summaries": {"algorithm", "read"},
    "GET /v1/agl/rollouts/{rollout_id}/calls": {"algorithm", "read"},
    "GET /v1/agl/training": {"algorithm", "read"},
    "GET /v1/agl/training/groups": {"algorithm", "read"},
    "GET /v1/agl/training/gain": {"algorithm", "read"},
    "GET /v1/agl/training/costs": {"algorithm", "read"},
    "POST /v1/agl/rollouts": {"algorithm", "runner"},
    "GET /v1/agl/rollouts": {"algorithm", "read"},
    "POST /v1/agl/rollouts/search": {"algorithm", "read"},
    "GET /v1/agl/rollouts/{rollout_id}": {"algorithm", "read", "runner", "attempt"},
    "POST /v1/agl/rollouts/{rollout_id}": {"algorithm"},
    "POST /v1/agl/rollouts/{rollout_id}/attempts": {"algorithm", "runner"},
    "GET /v1/agl/rollouts/{rollout_id}/attempts": {"algorithm", "read", "runner"},
    "POST /v1/agl/rollouts/{rollout_id}/attempts/search": {"algorithm", "read", "runner"},
    "GET /v1/agl/rollouts/{rollout_id}/attempts/latest": {"algorithm", "read", "runner"},
    "POST /v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}": {"algorithm", "runner"},
    "POST /v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}/return": {"algorithm", "runner"},
    "GET /v1/agl/workers": {"algorithm", "read"},
    "POST /v1/agl/workers/search": {"algorithm", "read"},
    "GET /v1/agl/workers/{worker_id}": {"algorithm", "read", "runner"},
    "POST /v1/agl/workers/{worker_id}": {"runner"},
    "POST /v1/agl/workers/{worker_id}/release": {"algorithm", "runner"},
    "GET /v1/agl/resources": {"algorithm", "read", "runner"},
    "POST /v1/agl/resources": {"algorithm"},
    "GET /v1/agl/resources/latest": {"algorithm", "read", "runner", "attempt"},
    "GET /v1/agl/resources/{resources_id}": {"algorithm", "read", "runner", "attempt"},
    "POST /v1/agl/resources/{resources_id}": {"algorithm"},
    "POST /v1/agl/resources/{resources_id}/swap": {"algorithm"},
    "POST /v1/agl/spans": {"algorithm", "runner", "attempt"},
    "POST /v1/agl/spans/batch": {"algorithm", "runner", "attempt"},
    "POST /v1/agl/spans/import": {"algorithm"},
    "GET /v1/agl/spans": {"algorithm", "read", "runner", "attempt"},
    "POST /v1/agl/spans/search": {"algorithm", "read", "runner", "attempt"},
    "POST /v1/agl/spans/next": {"algorithm", "runner", "attempt"},
    "POST /v1/agl/spans/next/batch": {"algorithm", "runner", "attempt"},
    "POST /v1/traces": {"algorithm", "runner", "attempt"},
    "POST /v1/metrics": {"algorithm", "runner", "attempt"},
    "POST /v1/logs": {"algorithm", "runner", "attempt"},
    "POST /v1/development/profiles": {"algorithm", "runner", "attempt"},
}
TABLE = {f"{method} {route.path}": route for route in ROUTES for method in route.methods or ()}


def test_the_table_above_is_complete():
    assert set(TABLE) == set(ALLOWED)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest_asyncio.fixture
async def guarded(serve):
    return await serve(auth_token=SECRET)


@pytest_asyncio.fixture
async def attempts(guarded) -> list[tuple[str, str]]:
    """Two rollouts, the first with two attempts: mine, its retry, and another rollout's."""
    mine = await guarded.claim()
    retry = await guarded.store.start_attempt(mine[0])
    return [mine, (mine[0], retry.attempt.attempt_id), await guarded.claim()]


def request_for(endpoint: APIRoute, rollout_id: str, attempt_id: str) -> dict[str, Any]:
    """A valid request that touches this attempt, wherever the endpoint names one."""
    span = Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id)
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    bodies: dict[str, Any] = {
        "/rollouts": {"input": 1},
        "/queues/rollouts/enqueue": {"rollouts": []},
        "/queues/rollouts/dequeue": {},
        "/waits/rollouts": {"rollout_ids": [], "timeout": 0},
        "/rollouts/summaries": {"rollout_ids": []},
        "/spans": span.model_dump(mode="json"),
        "/spans/batch": {"spans": [span.model_dump(mode="json")]},
        "/spans/import": {"spans": [span.model_dump(mode="json")]},
        "/spans/next": ids,
        "/spans/next/batch": {"ids": [ids]},
        "/spans/search": ids,
        "/workers/{worker_id}/release": {"reason": "it died"},
    }
    path = endpoint.path.format(
        rollout_id=rollout_id, attempt_id=attempt_id, worker_id="w", resources_id="r"
    )
    method = next(iter(endpoint.methods or ()))
    request: dict[str, Any] = {"method": method, "path": path}
    if method == "GET":
        request["params"] = ids if path.endswith("/spans") else {}
    elif any(type(need.call) is RawBody for need in endpoint.dependant.dependencies):
        request |= {"data": b"", "headers": {"Content-Type": "application/x-protobuf"}}
    else:
        request["json"] = bodies.get(endpoint.path.removeprefix("/v1/agl"), {})
        if path.endswith("/swap"):
            request["params"] = {"version": 0}
    return request


async def status(served: Any, request: dict[str, Any], headers: dict[str, str]) -> int:
    request = {**request, "headers": {**request.get("headers", {}), **headers}}
    url = served.url + request.pop("path")
    async with served.session.request(url=url, **request) as response:
        return response.status  # of a stream, without reading it


@pytest.mark.parametrize("name", TABLE)
async def test_scopes(guarded, attempts, name):
    mine = attempts[0]
    endpoint, allowed = TABLE[name], ALLOWED[name]
    request = request_for(endpoint, *mine)
    for scope in SCOPES:
        ids = dict(zip(("rollout_id", "attempt_id"), mine, strict=True))
        token = mint_token(SECRET, scope, lifetime=60, **(ids if scope == "attempt" else {}))
        got = await status(guarded, request, bearer(token))
        if scope == "attempt" and "resources_id" in name:
            assert got == 403  # it reads no snapshot but its own
        elif scope == "admin" or scope in allowed or "*" in allowed:
            assert got < 400 or got == 501, (scope, got)
        else:
            assert got == 403, (scope, got)


async def test_a_runner_may_list_rollouts_by_their_ids_only(guarded, attempts):
    headers = bearer(mint_token(SECRET, "runner", lifetime=60))
    bodies = [{"rollout_id_in": [attempts[0][0]]}, {"rollout_id_contains": "ro"}]
    bodies.append({"rollout_id_in": [], "status_in": ["running"], "filter_logic": "or"})
    request = {"method": "POST", "path": "/v1/agl/rollouts/search"}
    found = [await status(guarded, {**request, "json": body}, headers) for body in bodies]
    assert found == [200, 403, 403]


async def test_a_runner_releases_the_attempts_of_the_worker_that_it_names(guarded):
    store = guarded.store
    claimed = {}
    for name, worker in (("ended", "w"), ("open", "w"), ("also open", "w"), ("other's", "v")):
        rollout = await store.enqueue_rollout(name)
        claimed[name] = await store.dequeue_rollout(worker)
        assert claimed[name].rollout_id == rollout.rollout_id
    waiting = await store.enqueue_rollout("waiting")
    await store.update_attempt(claimed["ended"].rollout_id, "latest", status="succeeded")
    token = mint_token(SECRET, "runner", lifetime=60)
    client = LightningStoreClient(guarded.url, auth_token=token)
    await release_worker(client, "nobody", "it died")
    await release_worker(client, "w", "it died")
    await release_worker(client, "w", "again")  # nothing is open any more
    with pytest.raises(PermissionDeniedError, match="by their ids only"):
        await client.query_rollouts(status_in=["running"])
    with pytest.raises(PermissionDeniedError):
        await client.update_rollout(waiting.rollout_id, status="cancelled")
    await client.close()
    found = {name: await store.get_latest_attempt(c.rollout_id) for name, c in claimed.items()}
    assert {name: (each.status, each.metadata) for name, each in found.items()} == {
        "ended": ("succeeded", None),
        "open": ("failed", {"error": "it died"}),
        "also open": ("failed", {"error": "it died"}),
        "other's": ("preparing", None),
    }
    assert (await store.get_rollout_by_id(waiting.rollout_id)).status == "queuing"


@pytest.mark.parametrize("name", TABLE)
async def test_no_token_a_wrong_one_or_an_old_one_is_401(guarded, attempts, name):
    endpoint = TABLE[name]
    request = request_for(endpoint, *attempts[0])
    good = mint_token(SECRET, "admin", lifetime=60)
    head, payload, signature = good.split(".")
    claims = {"aud": "agl-store", "scope": "admin", "exp": time.time() + 60}
    wrong = {
        "none": {},
        "not a bearer": {"Authorization": f"Basic {good}"},
        "empty": bearer(""),
        "rubbish": bearer("rubbish"),
        "of another server": bearer(mint_token(SECRET[::-1], "admin", lifetime=60)),
        "expired": bearer(mint_token(SECRET, "admin", lifetime=-1)),
        "signature cut": bearer(f"{head}.{payload}.{signature[:-2]}"),
        "unsigned": bearer(jwt.encode(claims, "", algorithm="none")),
        "signed with the secret itself": bearer(jwt.encode(claims, SECRET, algorithm="HS256")),
    }
    for kind, headers in wrong.items():
        got = await status(guarded, request, headers)
        assert got == (200 if ALLOWED[name] == {"*"} else 401), kind


# Resources belong to no attempt, and what OTLP does is tested with it.
NAMING_AN_ATTEMPT = [
    name
    for name, who in ALLOWED.items()
    if "attempt" in who and ("/spans" in name or "/rollouts" in name)
]


@pytest.mark.parametrize("name", NAMING_AN_ATTEMPT)
async def test_an_attempts_token_opens_no_other_attempt(guarded, attempts, name):
    endpoint = TABLE[name]
    mine, retry, other = attempts
    token = mint_token(SECRET, "attempt", lifetime=60, rollout_id=mine[0], attempt_id=mine[1])
    assert await status(guarded, request_for(endpoint, *other), bearer(token)) == 403
    if "{rollout_id}" not in endpoint.path:
        assert await status(guarded, request_for(endpoint, *retry), bearer(token)) == 403


async def test_an_attempts_token_needs_its_attempt_named(guarded, attempts):
    mine = attempts[0]
    token = mint_token(SECRET, "attempt", lifetime=60, rollout_id=mine[0], attempt_id=mine[1])
    for attempt_id in (None, "latest"):
        params = {"rollout_id": mine[0]} | ({"attempt_id": attempt_id} if attempt_id else {})
        answer = await guarded.send("GET", "/v1/agl/spans", params=params, headers=bearer(token))
        assert answer.status == 403


async def test_an_attempts_token_does_not_show_the_retry(guarded, attempts):
    mine = attempts[0]
    token = mint_token(SECRET, "attempt", lifetime=60, rollout_id=mine[0], attempt_id=mine[1])
    path = f"/v1/agl/rollouts/{mine[0]}"
    shown = (await guarded.send("GET", path, headers=bearer(token))).json
    assert "attempt" not in shown
    full = (await guarded.send("GET", path, headers=bearer(SECRET))).json
    assert full["attempt"]["attempt_id"] == attempts[1][1]


async def test_a_claim_brings_the_attempts_token(guarded):
    await guarded.store.enqueue_rollout(1)
    runner = LightningStoreClient(
        guarded.url, auth_token=mint_token(SECRET, "runner", lifetime=60), retry_delays=()
    )
    claim = await runner.dequeue_rollout("w")
    assert claim is not None
    ids = (claim.rollout_id, claim.attempt.attempt_id)
    agent = LightningStoreClient(
        guarded.url, auth_token=runner.attempt_token(*ids), retry_delays=()
    )
    span = Span.from_attributes(attributes={}, rollout_id=ids[0], attempt_id=ids[1])
    assert await agent.add_span(span) == span
    with pytest.raises(PermissionError, match="scope attempt may not"):
        await agent.update_attempt(*ids, status="succeeded")
    with pytest.raises(PermissionError, match="bound to attempt"):
        await agent.query_spans("ro-other", "at-other")
    await runner.close()
    await agent.close()


async def test_a_token_stops_working_when_it_expires(guarded):
    headers = bearer(mint_token(SECRET, "read", lifetime=1.2))
    path = "/v1/agl/statistics"
    assert (await guarded.send("GET", path, headers=headers)).status == 200
    await asyncio.sleep(1.3)
    assert (await guarded.send("GET", path, headers=headers)).status == 401


def test_bad_secrets_and_scopes_are_refused():
    with pytest.raises(ConfigError, match="16 characters"):
        TokenVerifier("short")
    with pytest.raises(ConfigError, match="unknown scope"):
        mint_token(SECRET, "root", lifetime=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a rollout"):
        mint_token(SECRET, "attempt", lifetime=1)
    with pytest.raises(ConfigError, match="needs a rollout"):
        mint_token(SECRET, "read", lifetime=1, rollout_id="r", attempt_id="a")


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:4747"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost:4747"}, 200),
        ({"Host": "[::1]:4747"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": ""}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:4747", "Origin": "http://localhost:4747"}, 200),
        ({"Host": "localhost:4747", "Origin": "http://localhost:8080"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
async def test_foreign_pages_get_nothing(served, headers, expected):
    await served.store.enqueue_rollout("secret")
    answer = await served.send("GET", "/v1/agl/rollouts", headers=headers)
    assert answer.status == expected
    assert (b"secret" in answer.body) == (expected == 200)
    posted = await served.post("/queues/rollouts/enqueue", {"rollouts": []}, headers=headers)
    assert posted.status == (201 if expected == 200 else expected)


async def test_a_form_cannot_post(served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await served.send(
            "POST",
            "/v1/agl/queues/rollouts/enqueue",
            data=b'{"rollouts":[{"input":1}]}',
            headers={"Content-Type": kind},
        )
        assert answer.status == 415
    assert (await served.store.statistics()).get("total_rollouts") == 0


async def test_named_hosts_and_origins_are_let_in(serve):
    served = await serve(
        allowed_hosts=("store.internal",), cors_allow_origins=("https://dash.example",)
    )
    path = "/v1/agl/health"
    host = await served.send("GET", path, headers={"Host": "store.internal:80"})
    assert host.status == 200
    origin = {"Origin": "https://dash.example"}
    page = await served.send("GET", path, headers=origin)
    assert page.headers["access-control-allow-origin"] == "https://dash.example"
    assert page.headers["access-control-allow-credentials"] == "true"
    asked = {**origin, "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization"
    preflight = await served.send("OPTIONS", path, headers=asked)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    other = {**asked, "Origin": "https://evil.example"}
    refused = await served.send("OPTIONS", path, headers=other)
    assert refused.status == 400
    assert "access-control-allow-origin" not in refused.headers


async def test_every_origin_can_be_let_in(serve):
    served = await serve(cors_allow_origins=("*",))
    answer = await served.send("GET", "/v1/agl/nope", headers={"Origin": "https://any.example"})
    assert answer.status == 404
    assert answer.headers["access-control-allow-origin"] == "https://any.example"


async def test_without_cors_no_header_is_sent(guarded):
    answer = await guarded.send("GET", "/v1/agl/health", headers={"Origin": "https://a.example"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers
