"""What an agent can do to its own reward with its attempt's token: nothing after the end, and
nothing against a judge. Plain HTTP, as the agent's code would send it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agl_core.emitter import find_final_reward
from agl_core.semconv import LATE, WRITTEN_BY
from agl_core.types import Span
from agl_serving import mint_token
from agl_store_http.server import writers

SECRET = "a-secret-of-the-operator"
REWARD = "agentlightning.reward.0.value"
NAME = "agentlightning.reward.0.name"
LARGEST = 2**63 - 1


class Agent:
    def __init__(self, served: Any, ids: tuple[str, str], scope: Any = "attempt") -> None:
        self.served, self.ids = served, ids
        bound = dict(zip(("rollout_id", "attempt_id"), ids, strict=True))
        token = mint_token(SECRET, scope, lifetime=60, **(bound if scope == "attempt" else {}))
        self.headers = {"Authorization": f"Bearer {token}"}

    def span(self, attributes: dict[str, Any], sequence_id: int = 1, **more: Any) -> dict[str, Any]:
        span = Span.from_attributes(
            attributes=attributes,
            rollout_id=self.ids[0],
            attempt_id=self.ids[1],
            sequence_id=sequence_id,
        )
        return span.model_dump(mode="json") | more

    async def post(self, path: str, body: Any) -> Any:
        return await self.served.send("POST", f"/v1/agl{path}", json=body, headers=self.headers)

    async def send(self, route: str, attributes: dict[str, Any], sequence_id: int = 1) -> int:
        if route == "one":
            return (await self.post("/spans", self.span(attributes, sequence_id))).status
        if route == "batch":
            spans = [self.span(attributes, sequence_id)]
            return (await self.post("/spans/batch", {"spans": spans})).status
        request = ExportTraceServiceRequest()
        span = (
            request.resource_spans.add()
            .scope_spans.add()
            .spans.add(name="x", trace_id=b"1" * 16, span_id=str(sequence_id)[:8].encode().rjust(8))
        )
        attributes = {
            "agentlightning.rollout_id": self.ids[0],
            "agentlightning.attempt_id": self.ids[1],
            "agentlightning.span_sequence_id": str(sequence_id),
            **attributes,
        }
        for key, value in attributes.items():
            pair = span.attributes.add(key=key)
            if isinstance(value, bool):
                pair.value.bool_value = value
            elif isinstance(value, str):
                pair.value.string_value = value
            else:
                pair.value.double_value = value
        answer = await self.served.send(
            "POST",
            "/v1/traces",
            data=request.SerializeToString(),
            headers={**self.headers, "Content-Type": "application/x-protobuf"},
        )
        return answer.status


ROUTES = pytest.mark.parametrize("route", ["one", "batch", "otlp"])


@pytest_asyncio.fixture
async def guarded(serve: Any) -> Any:
    return await serve(auth_token=SECRET)


async def figure(served: Any, ids: tuple[str, str]) -> list[str]:
    """Order of rollouts by reward, which goes by the figure that the store keeps."""
    other = await served.claim()
    span = Span.from_attributes(
        attributes={REWARD: 0.5}, rollout_id=other[0], attempt_id=other[1], sequence_id=1
    )
    await served.store.add_span(span)
    page = await served.store.query_rollouts(sort_by="reward", sort_order="desc")
    return ["judged" if rollout.rollout_id == ids[0] else "half" for rollout in page][:2]


def reward(value: float) -> dict[str, Any]:
    return {REWARD: value, NAME: "primary"}


@ROUTES
async def test_the_largest_sequence_id_does_not_beat_the_judge(guarded, route):
    ids = await guarded.claim()
    agent, judge = Agent(guarded, ids), Agent(guarded, ids, "algorithm")
    assert await judge.send("one", reward(0.1), 5) == 201
    for number in (LARGEST, 2**40, 6, 1):
        assert await agent.send(route, reward(1e6), number) in (200, 201)
    spans = (await guarded.store.query_spans(*ids)).items
    assert len(spans) == 5
    assert find_final_reward(spans) == 0.1
    assert max(span.sequence_id for span in spans) < 100
    assert [span.attributes.get(WRITTEN_BY) for span in spans].count("attempt") == 4
    assert await figure(guarded, ids) == ["half", "judged"]
    token = {"Authorization": f"Bearer {SECRET}"}
    body = {"rollout_ids": [ids[0]]}
    answer = await guarded.post("/rollouts/summaries", body, headers=token)
    assert answer.json[0]["reward"] == 0.1


@ROUTES
async def test_only_the_server_says_who_wrote_a_span(guarded, route):
    ids = await guarded.claim()
    for scope, forged in (("attempt", "algorithm"), ("runner", "attempt"), ("algorithm", "x")):
        writer = Agent(guarded, ids, scope)
        await writer.send(route, {WRITTEN_BY: forged, LATE: True}, 1 + len(scope))
    spans = await guarded.store.query_spans(*ids)
    assert sorted(span.attributes.get(WRITTEN_BY, "") for span in spans) == ["", "", "attempt"]
    assert not any(LATE in span.attributes for span in spans)


@ROUTES
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_after_the_end_a_reward_changes_nothing(guarded, monkeypatch, route, status):
    ids = await guarded.claim()
    agent = Agent(guarded, ids)
    assert await agent.send(route, reward(0.1), 3) in (200, 201)
    if status == "cancelled":
        await guarded.store.update_rollout(ids[0], status=status)
    else:
        await guarded.store.update_attempt(*ids, status=status)
    before = await guarded.store.get_rollout_by_id(ids[0])
    assert await agent.send(route, reward(1_000_000), LARGEST) in (200, 201)
    spans = (await guarded.store.query_spans(*ids)).items
    assert [span.attributes[REWARD] for span in spans] == [0.1, 1_000_000]
    assert find_final_reward(spans) == 0.1
    assert await figure(guarded, ids) == ["half", "judged"]
    after = await guarded.store.get_rollout_by_id(ids[0])
    assert (before.status, before.end_time) == (after.status, after.end_time)
    monkeypatch.setattr(writers, "LATE_SECONDS", -1.0)
    assert await agent.send(route, {"late": "x"}, 9) == 409
    judge = Agent(guarded, ids, "algorithm")
    assert await judge.send(route, reward(0.9), 10) in (200, 201)
    assert find_final_reward((await guarded.store.query_spans(*ids)).items) == 0.9


@ROUTES
@pytest.mark.parametrize("status", ["timeout", "unresponsive"])
async def test_verdicts_of_the_watchdog_leave_an_attempt_open(guarded, monkeypatch, route, status):
    monkeypatch.setattr(writers, "LATE_SECONDS", -1.0)
    ids = await guarded.claim()
    await guarded.store.update_attempt(*ids, status=status)
    assert await Agent(guarded, ids).send(route, reward(0.5)) in (200, 201)
    assert find_final_reward((await guarded.store.query_spans(*ids)).items) == 0.5
    attempt = await guarded.store.get_latest_attempt(ids[0])
    assert attempt.status == ("running" if status == "unresponsive" else "timeout")


async def test_an_earlier_attempt_has_ended_too(guarded, monkeypatch):
    monkeypatch.setattr(writers, "LATE_SECONDS", -1.0)
    ids = await guarded.claim()
    await guarded.store.update_attempt(*ids, status="failed")
    again = await guarded.store.start_attempt(ids[0])
    assert await Agent(guarded, ids).send("one", reward(1.0)) == 409
    now = (ids[0], again.attempt.attempt_id)
    assert await Agent(guarded, now).send("one", reward(1.0)) == 201


async def test_drawn_sequence_ids_are_kept(guarded):
    ids = await guarded.claim()
    agent = Agent(guarded, ids)
    names = {"rollout_id": ids[0], "attempt_id": ids[1]}
    drawn = (await agent.post("/spans/next/batch", {"ids": [names] * 3})).json["sequence_ids"]
    spans = [agent.span({"n": number}, number) for number in [*reversed(drawn), 0]]
    await agent.post("/spans/batch", {"spans": spans})
    stored = await guarded.store.query_spans(*ids)
    assert [(span.sequence_id, span.attributes["n"]) for span in stored] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
    ]


async def test_ids_that_were_not_issued_keep_their_order(guarded):
    ids = await guarded.claim()
    agent = Agent(guarded, ids)
    numbers = [900, 700, 800, LARGEST]
    spans = [agent.span({"n": str(number)}, number) for number in numbers]
    answer = await agent.post("/spans/batch", {"spans": spans})
    assert answer.json == {"stored": 4, "duplicates": []}
    stored = await guarded.store.query_spans(*ids)
    assert [span.attributes["n"] for span in stored] == list(map(str, sorted(numbers)))
    payload = (await guarded.store.query_encoded_spans(*ids)).items[0].payload
    assert json.loads(payload)["sequence_id"] == 1


@ROUTES
async def test_an_attempt_that_ends_just_before_the_write_keeps_its_reward(
    guarded, monkeypatch, route
):
    """The server has looked, and then the runner writes the end."""
    ids = await guarded.claim()
    agent = Agent(guarded, ids)
    assert await agent.send(route, reward(0.1), 3) in (200, 201)
    finish = writers.Writer.finish

    async def finish_and_end(self: Any, spans: Any) -> Any:
        finished = await finish(self, spans)
        monkeypatch.setattr(writers.Writer, "finish", finish)
        await guarded.store.update_attempt(*ids, status="succeeded")
        return finished

    monkeypatch.setattr(writers.Writer, "finish", finish_and_end)
    assert await agent.send(route, reward(1_000_000), 4) == 409
    assert find_final_reward((await guarded.store.query_spans(*ids)).items) == 0.1
    assert await figure(guarded, ids) == ["half", "judged"]
    # Sent again, it is stored as what came late.
    assert await agent.send(route, reward(1_000_000), 4) in (200, 201)
    assert find_final_reward((await guarded.store.query_spans(*ids)).items) == 0.1
