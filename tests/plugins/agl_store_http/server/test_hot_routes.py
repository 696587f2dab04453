"""The hot routes give the replies that FastAPI's way to the same endpoints gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_core.types import Span
from agl_serving import mint_token
from agl_store_http.server.api import HOT_ENDPOINTS, ROUTES
from agl_store_http.server.doors.hot_routes import HotRoutes

SECRET = "a secret of more than sixteen characters"
HOT = HotRoutes(ROUTES, HOT_ENDPOINTS)


def requests(rollout_id: str, attempt_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Good and bad requests of hot routes; all can be sent twice with the same result."""
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    span = Span.from_attributes(
        attributes={"a": 1}, rollout_id=rollout_id, attempt_id=attempt_id
    ).model_dump(mode="json")
    attempt = f"/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}"
    text = {"Content-Type": "text/plain"}
    return [
        ("POST", "/v1/agl/queues/rollouts/enqueue", {"json": {"rollouts": []}}),
        ("POST", "/v1/agl/queues/rollouts/enqueue", {"json": {"rollouts": 1}}),
        ("POST", "/v1/agl/queues/rollouts/enqueue", {"data": b"{}", "headers": text}),
        ("POST", "/v1/agl/queues/rollouts/enqueue", {"data": b"x" * 2000}),
        ("POST", "/v1/agl/queues/rollouts/dequeue", {}),
        ("POST", attempt, {"json": {"status": "running", "last_heartbeat_time": 1.5}}),
        ("POST", attempt, {"json": {"status": None}}),
        ("POST", attempt.replace("at-", "at-x"), {"json": {}}),
        ("POST", "/v1/agl/workers/search", {"json": {}}),
        ("POST", "/v1/agl/spans/batch", {"json": {"spans": []}}),
        ("POST", "/v1/agl/spans", {"json": {**span, "sequence_id": 2**63}}),
        (
            "GET",
            "/v1/agl/rollouts",
            {"params": [("status_in", "running"), ("status_in", "failed")]},
        ),
        ("GET", "/v1/agl/rollouts", {"params": {"limit": "many", "sort_order": "up"}}),
        ("GET", "/v1/agl/rollouts", {"params": {"rollout_id_contains": "", "unknown": "1"}}),
        ("GET", "/v1/agl/spans", {"params": {**ids, "limit": "0"}}),
        ("GET", "/v1/agl/spans", {"params": ids}),
        ("GET", "/v1/agl/spans", {}),
        ("POST", "/v1/traces", {"data": b"", "headers": {"Content-Type": "application/json"}}),
    ]


@pytest.mark.parametrize("scope", [None, "admin", "read", "runner", "no token"])
async def test_replies_are_those_of_fastapi(serve, monkeypatch, scope):
    served = await serve(auth_token=SECRET if scope else None, max_body_bytes=1000)
    token = mint_token(SECRET, scope, lifetime=60) if scope in ("admin", "read", "runner") else ""
    rollout_id, attempt_id = await served.claim()

    async def replies() -> list[tuple[int, Any, Any]]:
        found: list[tuple[int, Any, Any]] = []
        for method, path, options in requests(rollout_id, attempt_id):
            headers = {**options.get("headers", {})}
            if token:
                headers["Authorization"] = f"Bearer {token}"
            answer = await served.send(method, path, **{**options, "headers": headers})
            names = {name.lower() for name in answer.headers} - {"date"}
            found.append((answer.status, json.loads(answer.body or b"null"), names))
        return found

    hot = await replies()
    monkeypatch.setattr(HotRoutes, "find", lambda *_: (None, {}))
    assert await replies() == hot


def test_a_literal_path_is_not_taken_for_an_id():
    assert HOT.find("POST", "/v1/agl/workers/search") == (None, {})
    assert HOT.find("POST", "/v1/agl/workers/w")[1] == {"worker_id": "w"}
    assert HOT.find("POST", "/v1/agl/workers/w/x") == (None, {})
