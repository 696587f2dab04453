"""Spans from OpenTelemetry exporters."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from agl_serving import mint_token
from agl_store_http.server.api import otlp

PROTOBUF = "application/x-protobuf"
SECRET = "a secret of more than sixteen characters"


def set_value(target: Any, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            set_value(target.array_value.values.add(), item)
    else:
        target.kvlist_value.SetInParent()
        fill(target.kvlist_value.values, value)


def fill(pairs: Any, attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        pair = pairs.add()
        pair.key = key
        set_value(pair.value, value)


def routing(rollout_id: str, attempt_id: str, **more: Any) -> dict[str, Any]:
    names = {"agentlightning.rollout_id": rollout_id, "agentlightning.attempt_id": attempt_id}
    return {**names, **{f"agentlightning.{key}": value for key, value in more.items()}}


def export(
    resource: dict[str, Any], *spans: dict[str, Any], schema_url: str = ""
) -> ExportTraceServiceRequest:
    """A request with one resource and a span per dict of attributes, ids 1, 2, 3, …"""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.schema_url = schema_url
    fill(group.resource.attributes, resource)
    scope = group.scope_spans.add()
    for number, attributes in enumerate(spans, start=1):
        span = scope.spans.add()
        span.name = f"span {number}"
        span.trace_id = bytes(15) + b"\x0a"
        span.span_id = number.to_bytes(8, "big")
        span.start_time_unix_nano = 1_700_000_000_500_000_000
        fill(span.attributes, attributes)
    return request


async def send(served: Any, message: Any, **headers: str) -> Any:
    body = message if isinstance(message, bytes | BytesIO) else message.SerializeToString()
    headers = {"Content-Type": PROTOBUF, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return await served.send("POST", "/v1/traces", data=body, headers=headers)


async def stored(served: Any, rollout_id: str) -> list[Any]:
    return list((await served.store.query_spans(rollout_id)).items)


@pytest.mark.parametrize("reward", [0.5, 1, "high", None])
async def test_rollouts_are_sorted_by_rewards_that_exporters_send(served, reward):
    without, ids = await served.claim(), await served.claim()
    await send(served, export(routing(*without), {"text": "agentlightning.reward.0.value"}))
    await send(served, export(routing(*ids), {"agentlightning.reward.0.value": reward}))
    for order in ("asc", "desc"):
        page = await served.store.query_rollouts(sort_by="reward", sort_order=order)
        # A missing reward sorts as the smallest; equal ones are in the order of insertion.
        up = order == "asc" or reward in ("high", None)
        assert [item.rollout_id for item in page] == [without[0], ids[0]][:: 1 if up else -1]


async def test_a_span_is_kept_whole(served):
    ids = await served.claim()
    request = export(routing(*ids, span_sequence_id="7"), {"a": 1}, schema_url="http://schema")
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.parent_span_id = (9).to_bytes(8, "big")
    span.end_time_unix_nano = 1_700_000_001_000_000_000
    span.status.code = Status.STATUS_CODE_ERROR
    span.status.message = "it broke"
    event = span.events.add()
    event.name, event.time_unix_nano = "e", 1_700_000_000_750_000_000
    fill(event.attributes, {"x": True})
    link = span.links.add()
    link.trace_id, link.span_id = bytes(15) + b"\x0b", (5).to_bytes(8, "big")

    answer = await send(served, request)
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, PROTOBUF, b"")
    kept = (await stored(served, ids[0]))[0].model_dump()
    trace_id, span_id = "0" * 31 + "a", "0" * 15 + "1"
    assert kept == {
        "rollout_id": ids[0],
        "attempt_id": ids[1],
        "sequence_id": 7,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": "0" * 15 + "9",
        "name": "span 1",
        "status": {"status_code": "ERROR", "description": "it broke"},
        "attributes": {"a": 1},
        "events": [{"name": "e", "attributes": {"x": True}, "timestamp": 1_700_000_000.75}],
        "links": [
            {
                "context": {
                    "trace_id": "0" * 31 + "b",
                    "span_id": "0" * 15 + "5",
                    "is_remote": False,
                    "trace_state": {},
                },
                "attributes": None,
            }
        ],
        "start_time": 1_700_000_000.5,
        "end_time": 1_700_000_001.0,
        "context": {
            "trace_id": trace_id,
            "span_id": span_id,
            "is_remote": False,
            "trace_state": {},
        },
        "parent": None,
        "resource": {
            "attributes": routing(*ids, span_sequence_id="7"),
            "schema_url": "http://schema",
        },
    }
    assert (await served.store.get_latest_attempt(ids[0])).status == "running"


async def test_the_stored_json_is_what_the_model_would_write(served):
    ids = await served.claim()
    await send(served, export(routing(*ids), {"f": 1.5, "s": "ü", "l": [1, 2]}))
    page = await served.store.query_encoded_spans(ids[0])
    assert page.items[0].payload == page.items[0].decode().model_dump_json().encode()


async def test_attribute_values(served):
    ids = await served.claim()
    values = {
        "text": "t",
        "yes": True,
        "int": -5,
        "float": 0.5,
        "infinite": float("inf"),
        "bytes": b"\x01\xff",
        "strings": ["a", "b"],
        "numbers": [1, 2.5],
        "mixed": ["a", 1],
        "nested": {"k": [1, {"d": None}]},
        "empty": [],
        "unset": None,
    }
    assert (await send(served, export(routing(*ids), values))).status == 200
    kept = (await stored(served, ids[0]))[0].attributes
    assert kept == {
        "text": "t",
        "yes": True,
        "int": -5,
        "float": 0.5,
        "infinite": "Infinity",
        "bytes": "01ff",
        "strings": ["a", "b"],
        "numbers": [1.0, 2.5],
        "mixed": '["a", 1]',
        "nested": '{"k": [1, {"d": null}]}',
        "empty": [],
    }


async def test_routing_of_the_span_beats_that_of_its_resource(served):
    of_resource, of_span = await served.claim(), await served.claim()
    await send(served, export(routing(*of_resource), {}, routing(*of_span)))
    assert [s.name for s in await stored(served, of_resource[0])] == ["span 1"]
    assert [s.name for s in await stored(served, of_span[0])] == ["span 2"]


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [(0, 0), ("12", 12), (12, 12), (-3, 1), ("-3", 1), ("x", 1), (2.5, 1), ("9" * 30, 1)],
)
async def test_sequence_ids(served, given_id, kept):
    ids = await served.claim()
    await send(served, export(routing(*ids, span_sequence_id=given_id), {}))
    assert [span.sequence_id for span in await stored(served, ids[0])] == [kept]


async def test_missing_sequence_ids_are_drawn_in_order(served):
    ids = await served.claim()
    await served.store.get_next_span_sequence_id(*ids)
    await send(served, export(routing(*ids), {}, {}, {}))
    assert [(s.name, s.sequence_id) for s in await stored(served, ids[0])] == [
        ("span 1", 2),
        ("span 2", 3),
        ("span 3", 4),
    ]


async def test_spans_that_belong_nowhere_are_counted(served):
    ids = await served.claim()
    request = export({}, {}, routing("ro-none", "at-none"), routing(*ids))
    answer = await send(served, request)
    assert answer.status == 200
    partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert partial.rejected_spans == 2
    assert "ro-none" in partial.error_message
    assert "1 spans name no rollout" in partial.error_message
    assert [span.name for span in await stored(served, ids[0])] == ["span 3"]


async def test_a_span_without_an_attempt_is_counted_even_if_its_rollout_is_not_utf_8(served):
    ids = await served.claim()
    request = export({}, {"agentlightning.rollout_id": "not UTF-8"}, routing(*ids))
    body = request.SerializeToString().replace(b"not UTF-8", b"\xff" * 9)
    answer = await send(served, body)
    partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert (answer.status, partial.rejected_spans) == (200, 1)
    assert [span.name for span in await stored(served, ids[0])] == ["span 2"]


async def test_spans_with_too_many_attributes_are_counted(served):
    ids = await served.claim()
    request = export(routing(*ids), {}, {})
    request.resource_spans[0].scope_spans[0].spans[0].attributes.extend([KeyValue()] * 70_000)
    answer = await send(served, request)
    partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert (answer.status, partial.rejected_spans) == (200, 1)
    assert "1 spans have more than 65536 attributes" in partial.error_message
    assert [span.name for span in await stored(served, ids[0])] == ["span 2"]
    request.resource_spans[0].resource.attributes.extend([KeyValue()] * 70_000)
    answer = await send(served, request)
    assert ExportTraceServiceResponse.FromString(answer.body).partial_success.rejected_spans == 2


async def test_a_span_that_is_too_large_is_counted(served, monkeypatch):
    monkeypatch.setattr(otlp, "MAX_SPAN_BYTES", 10_000)
    ids = await served.claim()
    answer = await send(served, export(routing(*ids), {"text": "x" * 10_000}, {}))
    partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert (answer.status, partial.rejected_spans) == (200, 1)
    assert "bytes as JSON" in partial.error_message
    assert [span.name for span in await stored(served, ids[0])] == ["span 2"]


async def test_a_batch_of_token_ids_is_taken(served):
    """512 spans are what an exporter of OpenTelemetry sends at a time."""
    ids = await served.claim()
    call = {"token_ids": list(range(100)), "logprobs": [-0.5] * 100, "tags": ["a", "b"]}
    assert (await send(served, export(routing(*ids), *[call] * 512))).status == 200
    spans = await stored(served, ids[0])
    assert len(spans) == 512
    assert spans[0].attributes == call


async def test_a_large_resource_is_not_written_a_thousand_times(served):
    ids = await served.claim()
    request = export(routing(*ids, note="x" * 100_000), *[{}] * 1_000)
    answer = await send(served, request)
    assert (answer.status, b"resource" in answer.body) == (413, True)
    assert (await send(served, export(routing(*ids, note="x" * 100_000), {}, {}))).status == 200
    assert len(await stored(served, ids[0])) == 2


async def test_a_request_of_events_alone_is_refused(served):
    ids = await served.claim()
    request = export(routing(*ids), {})
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.MergeFromString(b"\x5a\x00" * 1_100_000)
    assert len(span.events) == 1_100_000
    answer = await send(served, BytesIO(request.SerializeToString()))
    assert (answer.status, b"fields" in answer.body) == (413, True)


async def test_a_second_export_adds_nothing(served):
    ids = await served.claim()
    request = export(routing(*ids), {}, {})
    for _ in range(2):
        assert (await send(served, request)).status == 200
    assert len(await stored(served, ids[0])) == 2


@pytest.mark.parametrize(
    ("encoding", "compress"), [("GZIP", gzip.compress), ("deflate", zlib.compress)]
)
async def test_compressed_in_and_gzip_out(served, encoding, compress):
    ids = await served.claim()
    request = export(routing(*ids), {"n": 1})
    request.resource_spans.extend(export({}, {}).resource_spans)
    body = compress(request.SerializeToString())
    answer = await send(served, body, Content_Encoding=encoding, Accept_Encoding="br, gzip;q=1")
    assert answer.status == 200
    assert answer.headers["content-encoding"] == "gzip"  # undone by the client
    assert ExportTraceServiceResponse.FromString(answer.body).partial_success.rejected_spans == 1
    assert [span.attributes["n"] for span in await stored(served, ids[0])] == [1]


async def test_json(served):
    ids = await served.claim()
    document = {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [
                        {"key": key, "value": {"stringValue": value}}
                        for key, value in routing(*ids).items()
                    ]
                },
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "5B8EFFF798038103D269B633813FC60C",
                                "spanId": "eee19b7ec3c1b174",
                                "name": "json",
                                "startTimeUnixNano": "1700000000500000000",
                                "attributes": [{"key": "n", "value": {"intValue": "42"}}],
                                "status": {"code": 1},
                                "somethingNew": {"traceId": "ignored"},
                            }
                        ]
                    }
                ],
            }
        ]
    }
    answer = await send(served, json.dumps(document).encode(), Content_Type="application/json")
    assert (answer.status, answer.json) == (200, {})
    span = (await stored(served, ids[0]))[0]
    assert (span.trace_id, span.span_id) == (
        "5b8efff798038103d269b633813fc60c",
        "eee19b7ec3c1b174",
    )
    assert (span.attributes, span.start_time) == ({"n": 42}, 1_700_000_000.5)


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"\xff\xff", {}, 400, b"not an ExportTraceServiceRequest"),
        (b"", {"Content_Type": "text/plain"}, 400, b"Content-Type must be"),
        (b"no gzip", {"Content_Encoding": "gzip"}, 400, b"corrupt"),
        (gzip.compress(b"x" * 99, mtime=0)[:-4], {"Content_Encoding": "gzip"}, 400, b"truncated"),
        (gzip.compress(bytes(10**6), mtime=0), {"Content_Encoding": "gzip"}, 413, b"unfolds"),
        (b"[1]", {"Content_Type": "application/json"}, 400, b"OTLP/JSON"),
        (b'{"resourceSpans":1}', {"Content_Type": "application/json"}, 400, b"OTLP/JSON"),
        (
            b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}',
            {"Content_Type": "application/json; charset=utf-8"},
            400,
            b"OTLP/JSON",
        ),
        (b'{"a":' * 10_000, {"Content_Type": "application/json"}, 400, b"OTLP/JSON"),
    ],
)
async def test_bad_exports(serve, body, headers, status, reason):
    served = await serve(max_body_bytes=100_000)
    answer = await send(served, body, **headers)
    assert answer.status == status
    assert reason in answer.body
    if "json" not in headers.get("Content_Type", ""):
        assert answer.headers["content-type"] == PROTOBUF
        assert answer.body[:1] == b"\x12"  # google.rpc.Status.message


async def test_an_empty_export_is_accepted(served):
    assert (await send(served, b"")).status == 200


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs", "/v1/development/profiles"])
async def test_other_signals_are_501(served, path):
    answer = await served.send("POST", path, data=b"x", headers={"Content-Type": PROTOBUF})
    assert (answer.status, answer.body) == (501, b"")


async def test_an_attempts_token_says_where_spans_belong_and_writes_nowhere_else(serve):
    served = await serve(auth_token=SECRET)
    mine, other = await served.claim(), await served.claim()
    token = mint_token(SECRET, "attempt", lifetime=60, rollout_id=mine[0], attempt_id=mine[1])
    headers = {"Authorization": f"Bearer {token}"}
    assert (await send(served, export({}, {}), **headers)).status == 200
    assert len(await stored(served, mine[0])) == 1
    refused = await send(served, export({}, {}, routing(*other)), **headers)
    assert refused.status == 403
    assert await stored(served, other[0]) == []
    assert len(await stored(served, mine[0])) == 1


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_mutilated_exports_never_fail_the_server(data):
    """Cut, flipped and doubled bytes of a good request, straight into the route's functions."""
    from agl_core.types import Span
    from agl_store_http.server.otlp.decoding import JSON_TYPE, OTLPError, decode_request, decompress
    from agl_store_http.server.otlp.spans import encode_spans, pending_spans

    good = export(routing("ro", "at"), {"a": [1, "b"], "k": {"x": 1}}, {"t": "ü"})
    body = bytearray(good.SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and body:
            body[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del body[at : at + data.draw(st.integers(1, 20))]
        else:
            body[at:at] = data.draw(st.binary(max_size=20))
    for media_type, encoding in (
        (b"application/x-protobuf", b""),
        (b"application/x-protobuf", b"gzip"),
        (JSON_TYPE, b""),
    ):
        try:
            plain = decompress(bytes(body), encoding, 10**6)
            message = asyncio.run(decode_request(plain, media_type))
            pending, _ = asyncio.run(pending_spans(message, "ro", "at", 0))
            spans = asyncio.run(encode_spans(pending, range(len(pending))))
        except OTLPError:  # the reply is 400
            continue
        for span in spans:
            assert Span.model_validate_json(span.payload).span_id == span.span_id
