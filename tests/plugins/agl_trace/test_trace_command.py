"""``agl trace`` of a file and of a server, and sending to a backend."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, Span, TraceStatus
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

from .collector import Collector

sqlite = pytest.importorskip("agl_store_sqlite")


async def fill(store: LightningStore) -> list[str]:
    """Add a rollout with two attempts and a queued rollout to a store; return their ids."""
    started = await store.start_rollout({"q": 1}, mode="train")
    ids = [started.rollout_id, started.attempt.attempt_id]
    await store.add_many_spans([span(ids, 1, "first try", error="ValueError: no")])
    await store.update_attempt(ids[0], ids[1], status="failed")
    again = await store.start_attempt(ids[0])
    ids.append(again.attempt.attempt_id)
    second = [ids[0], ids[2]]
    call = {
        "gen_ai.response.id": "r",
        "gen_ai.response.model": "qwen",
        "gen_ai.usage.input_tokens": 1200,
        "gen_ai.usage.output_tokens": 34,
    }
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
    await store.add_many_spans(
        [
            span(second, 2, "agent", end=3),
            span(second, 3, "chat", parent=2, attributes=call),
            span(second, 4, "agentlightning.annotation", parent=2, attributes=reward),
        ]
    )
    await store.update_attempt(*second, status="succeeded")
    waiting = await store.enqueue_rollout("later")
    return [*ids, waiting.rollout_id]


def span(ids: list[str], number: int, name: str, **said: Any) -> Span:
    error = said.get("error")
    return Span.from_attributes(
        rollout_id=ids[0],
        attempt_id=ids[1],
        sequence_id=number,
        name=name,
        span_id=f"{number:016x}",
        parent_id=f"{said['parent']:016x}" if "parent" in said else None,
        start_time=1_700_000_000.0,
        end_time=1_700_000_000.0 + said.get("end", 1),
        attributes=said.get("attributes", {}),
        status=TraceStatus(status_code="ERROR" if error else "OK", description=error),
    )


async def closing(path: Path, work: Any) -> Any:
    store = sqlite.SqliteLightningStore(path, durability="normal")
    try:
        return await work(store)
    finally:
        await store.close()


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids in a filled agl.db in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "66")
    return asyncio.run(closing(tmp_path / "agl.db", fill))


def test_the_latest_attempt_as_a_tree(ids, capsys):
    assert main(["trace", ids[0]]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"rollout {ids[0]}: succeeded, train",
        f"attempt 2 of 2, {ids[2]}: succeeded",
        "3 spans, 3.00 s, 1 model call, 1,200 + 34 tokens, reward 0.5",
        "span             0             3.00 s      time     tokens  reward",
        "agent            ━━━━━━━━━━━━━━━━━━━━    3.00 s",
        "├─ chat · qwen   ━━━━━━━                 1.00 s    1200+34",
        "└─ annotation    ━━━━━━━                 1.00 s                0.5",
    ]


@pytest.mark.parametrize("which", ["1", "id"])
def test_another_attempt(ids, capsys, which):
    attempt = ids[1] if which == "id" else which
    assert main(["trace", ids[0], "--attempt", attempt]) == 0
    said = capsys.readouterr().out
    assert f"attempt 1 of 2, {ids[1]}: failed\n1 span, 1.00 s, 1 error\n" in said
    assert said.endswith("  ✗ ValueError: no\n")


def test_a_part_of_an_id_and_depth(ids, capsys):
    assert main(["trace", ids[0][3:9], "--path", "agl.db", "--depth", "0"]) == 0
    assert "agent (+2)" in capsys.readouterr().out


def test_json(ids, capsys):
    assert main(["trace", ids[0], "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rollout"] == {
        "rollout_id": ids[0],
        "status": "succeeded",
        "mode": "train",
        "resources_id": None,
        "input": {"q": 1},
        "replay": None,
    }
    assert (said["attempt"]["attempt_id"], said["attempt"]["attempts"]) == (ids[2], 2)
    assert said["summary"] == {
        "spans": 3,
        "seconds": 3.0,
        "calls": 1,
        "input_tokens": 1200,
        "output_tokens": 34,
        "reward": 0.5,
        "errors": 0,
        "missing": 0,
        "auxiliary": 0,
    }
    assert [(row["name"], row["depth"]) for row in said["spans"]] == [
        ("agent", 0),
        ("chat", 1),
        ("agentlightning.annotation", 1),
    ]


def test_the_latest_rollout_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> str:
        await store.start_rollout("old")
        started = await store.start_rollout("new")
        return started.rollout_id

    newest = asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest"]) == 0
    assert capsys.readouterr().out.splitlines()[0::2] == [f"rollout {newest}: preparing", "0 spans"]


def test_user_errors_are_one_line(ids, capsys):
    for arguments, message, code in (
        (["ro-none"], "the store has no rollout 'ro-none'", 1),
        (["ro-"], "'ro-' is part of 2 ids: ro-", 1),
        ([ids[0], "--attempt", "3"], "has no attempt '3'; it has 1 (at-", 1),
        ([ids[3]], "has no attempt yet: it is queuing", 1),
        ([ids[0], "--path", "gone.db"], "there is no store gone.db", 2),
        ([ids[0], "--backend", "memory"], "a store in memory is gone", 2),
        ([ids[0], "--url", "localhost:4747"], "--url must be a server's", 2),
        ([ids[0], "--otlp", "localhost:4318"], "is not a URL of an OTLP backend", 2),
        ([ids[0], "--header", "a=b"], "--header needs --otlp", 2),
        ([ids[0], "--otlp", "http://h", "--header", "secret"], "is not NAME=VALUE", 2),
        ([ids[0], "--depth", "-1"], "-1 is not in the range", 2),
        ([], "Missing argument 'ROLLOUT'", 2),
    ):
        assert main(["trace", *arguments]) == code, arguments
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.count("\n") == 1
        assert said.out == ""


def test_an_empty_store(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asyncio.run(closing(tmp_path / "agl.db", LightningStore.get_latest_resources))
    assert main(["trace", "latest"]) == 1
    assert "the store has no rollout yet" in capsys.readouterr().err


@pytest.fixture
def server() -> Iterator[Any]:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_a_server_and_an_unreachable_server(server, capsys):
    ids = asyncio.run(fill(server))
    assert main(["trace", ids[0], "--url", server.endpoint, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["spans"] == 3
    asyncio.run(server.stop())
    assert main(["trace", ids[0], "--url", server.endpoint]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_strict_backend_accepts_the_spans(ids, capsys, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a,x-api-key=old")
    with Collector() as collector:
        assert main(["trace", ids[0], "--otlp", collector.url, "--header", "x-api-key=new=1"]) == 0
    assert capsys.readouterr().out == f"3 spans sent to {collector.url}/v1/traces\n"
    assert collector.problems == []
    assert [one.name for one in collector.spans] == ["agent", "chat", "agentlightning.annotation"]
    assert collector.spans[1].parent_span_id == collector.spans[0].span_id
    sent = collector.headers[0]
    assert (sent["x-api-key"], sent["x-tenant"]) == ("new=1", "a")


def test_the_store_server_accepts_the_spans(ids, capsys, server):
    """Spans sent to a store server with the same rollout are stored there."""

    async def twin() -> list[str]:
        started = await server.start_rollout({"q": 1})
        return [started.rollout_id, started.attempt.attempt_id]

    there = asyncio.run(twin())

    async def rename(store: LightningStore) -> None:
        spans = await store.query_spans(ids[0], ids[2])
        started = await store.start_rollout("x")
        moved = [
            one.model_copy(
                update={"attempt_id": started.attempt.attempt_id, "rollout_id": started.rollout_id}
            )
            for one in spans.items
        ]
        routed = {"agentlightning.rollout_id": there[0], "agentlightning.attempt_id": there[1]}
        for one in moved:
            one.attributes.update(routed)
        await store.add_many_spans(moved)

    asyncio.run(closing(Path("agl.db"), rename))
    assert main(["trace", "latest", "--otlp", server.endpoint, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["otlp"]
    assert said == {
        "url": f"{server.endpoint}/v1/traces",
        "sent": 3,
        "rejected": 0,
        "message": "",
    }
    spans = asyncio.run(server.query_spans(there[0])).items
    assert [(one.name, one.sequence_id) for one in spans] == [
        ("agent", 2),
        ("chat", 3),
        ("agentlightning.annotation", 4),
    ]


def test_spans_that_a_backend_drops_are_reported_and_the_command_fails(ids, capsys, server):
    assert main(["trace", ids[0], "--otlp", server.endpoint]) == 1
    said = capsys.readouterr().out
    assert "3 spans sent to" in said
    assert "; 3 of them were dropped: " in said


@pytest.mark.timing
def test_ten_thousand_spans_are_shown_in_seconds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> None:
        started = await store.start_rollout("big")
        ids = [started.rollout_id, started.attempt.attempt_id]
        await store.add_many_spans(
            [span(ids, n, "step", parent=max(1, n // 3)) for n in range(2, 10_001)]
        )

    asyncio.run(closing(tmp_path / "agl.db", work))
    begun = time.monotonic()
    assert main(["trace", "latest"]) == 0
    took = time.monotonic() - begun
    assert capsys.readouterr().out.count("\n") == 10_004  # including the missing parent
    assert took < 30


def test_a_failed_rollout_shows_the_error_that_ended_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> None:
        started = await store.start_rollout("x")
        error = {"error": "ValueError: no\nroom \x1b[31m", "error_type": "ValueError"}
        await store.update_attempt(started.rollout_id, "latest", status="failed", metadata=error)

    asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "error: ValueError: no room ?[31m",
        "0 spans",
    ]


@pytest.mark.parametrize(("status", "said"), [("timeout", "timeout_"), ("unresponsive", "heartb")])
def test_an_attempt_that_the_store_ended_says_why(tmp_path, monkeypatch, capsys, status, said):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> None:
        started = await store.start_rollout("x")
        await store.update_attempt(started.rollout_id, "latest", status=status)

    asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest"]) == 0
    assert said in capsys.readouterr().out.splitlines()[2]


def test_latest_is_the_last_that_began(tmp_path, monkeypatch, capsys):
    """Not one that waits, nor the first of a batch that was enqueued at one time."""
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> str:
        batch = [EnqueueRolloutRequest(input=number) for number in range(6)]
        await store.enqueue_many_rollouts(batch)
        claimed = await store.dequeue_many_rollouts(limit=5)
        for one in claimed:
            await store.update_attempt(one.rollout_id, "latest", status="succeeded")
        return claimed[-1].rollout_id

    last = asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest"]) == 0
    assert capsys.readouterr().out.startswith(f"rollout {last}: succeeded")


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "qwen"}


def call(messages: list[Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a model call."""
    return CHAT | {
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([answer]),
    }


def said(role: str, text: str, kind: str = "text") -> dict[str, Any]:
    return {"role": role, "parts": [{"type": kind, "content": text}]}


TOOL = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"seats": 4}}
RESULT = {"type": "tool_call_response", "id": "c1", "response": "Oslo\nBergen"}


def test_the_conversation_of_a_rollout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    first = [said("system", "You book rooms."), said("user", "A room " + "for us, " * 6)]
    asked = {"role": "assistant", "parts": [TOOL]}
    second = [*first, asked, {"role": "tool", "parts": [RESULT]}]

    async def work(store: LightningStore) -> None:
        started = await store.start_rollout("x")
        ids = [started.rollout_id, started.attempt.attempt_id]
        calls = [call(first, asked), call(second, said("assistant", "Oslo. \x1b[2J"))]
        spans = [span(ids, n, "chat", attributes=each) for n, each in enumerate(calls, start=1)]
        await store.add_many_spans(spans)

    asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest", "--chat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == [
        "call 1",
        "  system     You book rooms.",
        "  user       A room for us, for us, for",
        "             us, for us, for us, for us,",
        '  assistant  search({"seats": 4})',
        "call 2, goes on from call 1",
        "  tool       Oslo",
        "             Bergen",
        "  assistant  Oslo. ?[2J",
    ]
    assert main(["trace", "latest", "--chat", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(each["messages"]) for each in told["conversations"]] == [3, 5]
    assert main(["trace", "latest", "--chat", "--forks"]) == 2
    assert "--forks and --chat exclude each other" in capsys.readouterr().err


def test_a_call_with_a_role_outside_of_chat_is_named_and_the_others_are_shown(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    async def work(store: LightningStore) -> None:
        started = await store.start_rollout("x")
        ids = [started.rollout_id, started.attempt.attempt_id]
        calls = [
            call([said("ipython", "1 + 1")], said("assistant", "2")),
            call([said("user", "Hi")], said("assistant", "Hello.")),
        ]
        spans = [
            span(ids, n, "chat\x1b[2J", attributes=each) for n, each in enumerate(calls, start=1)
        ]
        await store.add_many_spans(spans)

    asyncio.run(closing(tmp_path / "agl.db", work))
    assert main(["trace", "latest", "--chat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:6] == ["call 1", "  user       Hi", "  assistant  Hello."]
    (left_out,) = lines[6:]
    assert left_out.startswith("left out: 1 call (span ")
    assert "message 0 is not a chat message" in left_out and "ipython" in left_out
    assert "\x1b" not in left_out
    assert main(["trace", "latest", "--chat", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["conversations"]) == 1
    assert told["report"]["spans"] == 2 and len(told["report"]["left_out"]["call"]) == 1


def test_a_rollout_without_model_calls_has_no_conversation(ids, capsys):
    assert main(["trace", ids[0], "--attempt", "1", "--chat"]) == 0
    assert capsys.readouterr().out.endswith("no model call with messages was recorded\n")
