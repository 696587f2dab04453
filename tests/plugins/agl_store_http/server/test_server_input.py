"""Invalid requests of all kinds: always a 4xx with a reason, never a 500."""

from __future__ import annotations

import asyncio
import json
import socket
from io import BytesIO
from typing import Any

import pytest

from agl_store_memory import InMemoryLightningStore

ENQUEUE = "/v1/agl/queues/rollouts/enqueue"
JSON = {"Content-Type": "application/json"}


def with_input(value: bytes) -> bytes:
    return b'{"rollouts":[{"input":' + value + b"}]}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b'{"rollouts":',
        b'{"rollouts":null}',
        b'{"rollouts":{}}',
        b'{"rollouts":[{}]}',
        b'{"rollouts":[{"input":1,"mode":"sideways"}]}',
        b'{"rollouts":[{"input":1,"config":{"max_attempts":0}}]}',
        b'{"rollouts":[{"input":1,"metadata":[1]}]}',
        with_input(b"NaN"),
        with_input(b"-Infinity"),
        with_input(b'{"deep":[1,NaN]}'),
        with_input(b"1e999"),
        with_input(b"1E+400"),
        with_input(b"9" * 400 + b".5"),
        with_input(b"9" * 5000),
        with_input(b"[" * 20_000 + b"]" * 20_000),
        with_input(b'{"a":' * 300 + b"1" + b"}" * 300),
        with_input(b'"\xff\xfe"'),
        with_input(b'"\\ud800"'),
        b"\x00\x01\x02",
        b"\x1f\x8b\x08\x00",
        with_input(b"1") + b"trailing",
    ],
    ids=lambda body: repr(body[:30]),
)
async def test_bad_bodies_are_422_with_a_reason(served, body):
    answer = await served.send("POST", ENQUEUE, data=body, headers=JSON)
    assert answer.status == 422
    assert answer.json["detail"][0]["msg"]
    assert len(answer.body) < 1000
    assert (await served.store.statistics()).get("total_rollouts") == 0


@pytest.mark.parametrize(
    "value", ['"NaN"', '"1e999 Infinity"', '"ro-12e345"', "1e300", "9" * 300, '"' + "9" * 400 + '"']
)
async def test_what_only_looks_infinite_is_kept(served, value):
    answer = await served.send("POST", ENQUEUE, data=with_input(value.encode()), headers=JSON)
    assert answer.status == 201
    assert answer.json[0]["input"] == json.loads(value)


async def test_spans_keep_infinities_as_text_and_refuse_huge_ids(served):
    from agl_core.types import Span

    rollout_id, attempt_id = await served.claim()
    span = Span.from_attributes(
        attributes={"big": 2.5}, rollout_id=rollout_id, attempt_id=attempt_id
    )
    body = span.model_dump_json().replace("2.5", "1e999")
    answer = await served.send("POST", "/v1/agl/spans", data=body, headers=JSON)
    assert answer.json["attributes"] == {"big": "Infinity"}
    huge = {**span.model_dump(mode="json"), "sequence_id": 2**63}
    assert (await served.post("/spans", huge)).status == 422
    nan = span.model_dump_json().replace("2.5", "NaN")
    refused = await served.send("POST", "/v1/agl/spans", data=nan, headers=JSON)
    assert refused.status == 422


async def test_large_bodies_are_413(serve):
    served = await serve(max_body_bytes=1000)
    fits = with_input(b'"' + b"x" * 900 + b'"')
    assert (await served.send("POST", ENQUEUE, data=fits, headers=JSON)).status == 201
    large = with_input(b'"' + b"x" * 1000 + b'"')
    assert (await served.send("POST", ENQUEUE, data=large, headers=JSON)).status == 413

    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 100

    answer = await served.send("POST", ENQUEUE, data=endless(), headers=JSON)
    assert (answer.status, "1000 bytes" in answer.json["detail"]) == (413, True)
    assert (await served.get("/health")).status == 200


@pytest.mark.parametrize("text", ["{}", '{"name": "e"}', '{"name" \n: "e"}'])
async def test_bodies_of_too_many_keys_are_413(served, text):
    from agl_core.types import Span

    rollout_id, attempt_id = await served.claim()
    words = {"text": '{"a": "b"}, ' * 100_000}  # keys of a text are not keys of the body
    span = Span.from_attributes(attributes=words, rollout_id=rollout_id, attempt_id=attempt_id)
    body = span.model_dump_json()
    data = BytesIO(body.encode())
    assert (await served.send("POST", "/v1/agl/spans", data=data, headers=JSON)).status == 201
    body = body.replace('"events":[]', f'"events":[{",".join([text] * 140_000)}]')
    data = BytesIO(body.encode())
    answer = await served.send("POST", "/v1/agl/spans", data=data, headers=JSON)
    assert (answer.status, "too many values" in answer.json["detail"]) == (413, True)


async def test_announced_size_is_refused_without_reading(serve):
    served = await serve(max_body_bytes=1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.launcher.port)
    head = f"POST {ENQUEUE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    writer.write(head.encode())
    line = await asyncio.wait_for(reader.readline(), 5)
    assert b"413" in line
    writer.close()
    await writer.wait_closed()


async def test_keys_that_are_too_long_are_400(served):
    headers = {"Idempotency-Key": "k" * 201}
    answer = await served.post("/queues/rollouts/enqueue", {"rollouts": []}, headers=headers)
    assert answer.status == 400


async def test_half_a_request_leaves_nothing_behind(served):
    for cut in (20, 80, 150):
        whole = (
            f"POST {ENQUEUE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: 28\r\n\r\n"
        ).encode() + with_input(b"1")
        _, writer = await asyncio.open_connection("127.0.0.1", served.launcher.port)
        writer.write(whole[:cut])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    with socket.create_connection(("127.0.0.1", served.launcher.port)) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n")
        raw.settimeout(5)
        assert b"400" in await asyncio.to_thread(raw.recv, 1000)
    assert (await served.store.statistics()).get("total_rollouts") == 0


class FailingStore(InMemoryLightningStore):
    async def get_rollout_by_id(self, rollout_id: str) -> Any:
        raise OSError("the disk at /secret/path is gone")


async def test_a_failure_is_logged_under_the_id_that_the_caller_gets(serve, caplog):
    served = await serve(FailingStore())
    answer = await served.get("/rollouts/x")
    assert answer.status == 500
    error_id = answer.json["error_id"]
    assert answer.json == {
        "detail": "Internal server error",
        "error_type": "OSError",
        "error_id": error_id,
    }
    logged = next(record for record in caplog.records if error_id in record.getMessage())
    assert logged.exc_info is not None
    assert "/secret/path" in str(logged.exc_info[1])


@pytest.mark.parametrize("name", ["limit", "offset"])
async def test_numbers_that_no_database_holds_are_422(served, name):
    answer = await served.get("/rollouts", **{name: 10**30})
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["query", name])
    assert (await served.post("/workers/search", {name: -(10**30)})).status == 422
