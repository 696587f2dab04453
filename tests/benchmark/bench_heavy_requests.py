"""Measures what single requests cost the store server at most: loop, CPU and memory.

``python dev.py bench heavy_requests``, or ``python tests/benchmark/bench_heavy_requests.py
[--rollouts 100000] [--spans 100000] [--store sqlite] [--no-memory] [CASE...]``. The application is
called without a socket, so that nothing but the server is measured. *Held* is the longest stretch
of CPU time in which the event loop runs one callback. CPU and peak memory are per MB of the body,
for requests with a body of 64 kB or more. Memory is measured with the same request, sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agl_core.types import EnqueueRolloutRequest, Span
from agl_serving import Message, freeze_memory
from agl_store_http import StoreApp
from agl_store_memory import InMemoryLightningStore
from agl_store_sqlite import SqliteLightningStore

sys.path.insert(0, str(Path(__file__).parents[2]))

pytestmark = pytest.mark.benchmark

ROLLOUTS: Final = 100_000
SPANS: Final = 100_000
MB: Final = 2**20
SMALL: Final = 64 * 1024
HELD_MS: Final = 100.0
CPU_MS: Final = 30.0
TIMES: Final = 6.0

Request = tuple[str, str, bytes, str]


class Held:
    """The longest stretch of CPU time that a callback of this thread's loop took."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._run = asyncio.Handle._run

    def __enter__(self) -> Held:
        run = self._run

        def timed(handle: Any) -> None:
            began = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - began)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


async def ask(app: StoreApp, request: Request) -> tuple[int, int]:
    """Send a request to the application; return status and size of the reply."""
    method, target, body, kind = request
    path, _, query = target.partition("?")
    headers = [(b"host", b"127.0.0.1:4747"), (b"content-length", b"%d" % len(body))]
    coding = [(b"content-encoding", b"gzip")] if body[:2] == b"\x1f\x8b" else []
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [*headers, *coding, (b"content-type", kind.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4747),
    }
    sent = 0
    asked = False
    gone = asyncio.Event()

    async def receive() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    status = 0

    async def send(message: Message) -> None:
        nonlocal sent, status
        status = message.get("status", status)
        sent += len(message.get("body", b""))
        await asyncio.sleep(0)

    await app(scope, receive, send)
    return status, sent


# -- the requests ----------------------------------------------------------------------------------


def span_json(ids: tuple[str, str], attributes: Any, number: int = 1) -> str:
    span = Span.from_attributes(
        attributes={}, rollout_id=ids[0], attempt_id=ids[1], span_id=f"{number:016x}"
    )
    return span.model_dump_json().replace(
        '"attributes":{}', f'"attributes":{json.dumps(attributes)}', 1
    )


def otlp(ids: tuple[str, str], spans: int, attributes: int, text: str) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add()
    for key, value in zip(
        ("agentlightning.rollout_id", "agentlightning.attempt_id"), ids, strict=True
    ):
        scope.resource.attributes.add(key=key).value.string_value = value
    inner = scope.scope_spans.add()
    for number in range(spans):
        span = inner.spans.add(
            name="x", trace_id=b"1" * 16, span_id=number.to_bytes(8, "big"), kind=1
        )
        for index in range(attributes):
            span.attributes.add(key=f"k{index}").value.string_value = text
    return request.SerializeToString()


def otlp_json(ids: tuple[str, str], spans: int, attributes: int) -> dict[str, Any]:
    def pairs(values: dict[str, str]) -> list[Any]:
        return [{"key": key, "value": {"stringValue": text}} for key, text in values.items()]

    own = pairs(dict.fromkeys((f"k{index}" for index in range(attributes)), "text"))
    of_span = {"name": "x", "traceId": "1" * 32, "kind": 1, "attributes": own}
    resource = pairs({"agentlightning.rollout_id": ids[0], "agentlightning.attempt_id": ids[1]})
    listed = [{**of_span, "spanId": f"{number + 1:016x}"} for number in range(spans)]
    group = {"resource": {"attributes": resource}, "scopeSpans": [{"spans": listed}]}
    return {"resourceSpans": [group]}


def otlp_nested(ids: tuple[str, str], depth: int) -> bytes:
    """Return a request with a list of lists, as deep as asked; the library writes 100 at most."""

    def field(number: int, content: bytes) -> bytes:
        size, length = len(content), bytearray()
        while size > 0x7F:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([number << 3 | 2, *length, size]) + content

    value = field(1, b"x")
    for _ in range(depth):
        value = field(5, field(1, value))
    group = ExportTraceServiceRequest.FromString(otlp(ids, 1, 0, "")).resource_spans[0]
    span = group.scope_spans[0].spans[0].SerializeToString()
    deep = span + field(9, field(1, b"k") + field(2, value))
    return field(1, field(1, group.resource.SerializeToString()) + field(2, field(2, deep)))


def requests(ids: tuple[str, str], rollout_ids: Sequence[str]) -> dict[str, Callable[[], Request]]:
    api, js, pb = "/v1/agl", "application/json", "application/x-protobuf"

    def post(path: str, body: Any, kind: str = js) -> Request:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return "POST", path if path.startswith("/v1/") else api + path, data, kind

    def batch(number: int, attributes: Any) -> bytes:
        spans = ",".join(span_json(ids, attributes, n) for n in range(number))
        return b'{"spans":[%b]}' % spans.encode()

    def enqueue(number: int, task: Any) -> Request:
        return post("/queues/rollouts/enqueue", {"rollouts": [{"input": task}] * number})

    def prompts(text: str) -> dict[str, Any]:
        prompt = {"resource_type": "prompt_template", "template": text, "engine": "f-string"}
        return {f"p{n}": prompt for n in range(8)}

    flat = {f"k{n}": "text" for n in range(32)}
    ten_thousand = "&".join(f"rollout_id_in={each}" for each in rollout_ids[:10_000])
    return {
        "a span of 1 MB of text": lambda: post(
            "/spans", span_json(ids, {"a": "x" * MB}).encode()
        ),
        "a span of a million tokens": lambda: post(
            "/spans", span_json(ids, {"a": list(range(100_000, 1_100_000))}).encode()
        ),
        "a span of 30,000 attributes": lambda: post(
            "/spans", span_json(ids, {f"k{n}": n for n in range(30_000)}).encode()
        ),
        "a span of 280,000 texts": lambda: post(
            "/spans", span_json(ids, {"a": ["ab"] * 280_000}).encode()
        ),
        "a batch of 1,000 spans": lambda: post("/spans/batch", batch(1_000, flat)),
        "a batch of 100 spans": lambda: post("/spans/batch", batch(100, flat)),
        "OTLP of 1,000 spans": lambda: post("/v1/traces", otlp(ids, 1_000, 32, "text"), pb),
        "OTLP of 100 spans": lambda: post("/v1/traces", otlp(ids, 100, 32, "text"), pb),
        "OTLP of 1 span, 30,000 attributes": lambda: post(
            "/v1/traces", otlp(ids, 1, 30_000, ""), pb
        ),
        "OTLP, gzip of 20 MB": lambda: post(
            "/v1/traces", gzip.compress(otlp(ids, 100, 1, "x" * 200_000)), pb
        ),
        "1,000 tasks": lambda: enqueue(1_000, {"question": "Which room?", "options": [1, 2, 3]}),
        "one task of 280,000 numbers": lambda: enqueue(1, [1] * 280_000),
        "one task of 35,000 lists": lambda: enqueue(1, [[]] * 31_000),
        "one task of 1 MB of text": lambda: enqueue(1, "x" * MB),
        "resources of 1 MB": lambda: post(
            "/resources",
            {"p": {"resource_type": "prompt_template", "template": "x" * MB, "engine": "f-string"}},
        ),
        "resources of 280,000 numbers": lambda: post(
            "/resources", {"a": {"resource_type": "x", "y": [1] * 280_000}}
        ),
        "a heartbeat of 280,000 numbers": lambda: post(
            "/workers/w", {"heartbeat_stats": {"a": [1] * 280_000}}
        ),
        "a search for 50,000 ids": lambda: post(
            "/rollouts/search", {"rollout_id_in": list(rollout_ids[:50_000]), "limit": 10}
        ),
        "a wait for 50,000 ids": lambda: post(
            "/waits/rollouts", {"rollout_ids": list(rollout_ids[:50_000]), "timeout": 0}
        ),
        "all rollouts": lambda: ("GET", f"{api}/rollouts?limit=-1", b"", js),
        "rollouts by a part of the id": lambda: (
            "GET", f"{api}/rollouts?rollout_id_contains=zzz&limit=10", b"", js,
        ),
        "rollouts sorted by reward": lambda: (
            "GET", f"{api}/rollouts?sort_by=reward&sort_order=desc&limit=10", b"", js,
        ),
        "rollouts sorted by mode": lambda: (
            "GET", f"{api}/rollouts?sort_by=mode&limit=10", b"", js,
        ),
        "counts": lambda: ("GET", f"{api}/rollouts/counts", b"", js),
        "statistics": lambda: ("GET", f"{api}/statistics", b"", js),
        "training": lambda: ("GET", f"{api}/training", b"", js),
        "all spans of a rollout": lambda: (
            "GET", f"{api}/spans?rollout_id={ids[0]}&limit=-1", b"", js,
        ),
        "spans by a part of the name": lambda: (
            "GET", f"{api}/spans?rollout_id={ids[0]}&name_contains=zzz&limit=10", b"", js,
        ),
        "all spans of a rollout by name": lambda: (
            "GET", f"{api}/spans?rollout_id={ids[0]}&sort_by=name&limit=-1", b"", js,
        ),
        "all spans with a part of the name": lambda: (
            "GET", f"{api}/spans?rollout_id={ids[0]}&name_contains=n&limit=-1", b"", js,
        ),
        "all rollouts of a status": lambda: (
            "GET", f"{api}/rollouts?status_in=queuing&limit=-1", b"", js,
        ),
        "all rollouts, the newest first": lambda: (
            "GET", f"{api}/rollouts?sort_by=start_time&sort_order=desc&limit=-1", b"", js,
        ),
        "all rollouts sorted by reward": lambda: (
            "GET", f"{api}/rollouts?sort_by=reward&limit=-1", b"", js,
        ),
        "all rollouts of a mode": lambda: (
            "GET", f"{api}/rollouts?mode_in=train&limit=-1", b"", js,
        ),
        "all rollouts by a part or a mode": lambda: (
            "GET",
            f"{api}/rollouts?mode_in=val&rollout_id_contains=a&filter_logic=or&limit=-1",
            b"",
            js,
        ),
        "a query for 10,000 ids": lambda: (
            "GET",
            f"{api}/rollouts?limit=10&{ten_thousand}",
            b"",
            js,
        ),
        "a query for all of 10,000 ids": lambda: (
            "GET",
            f"{api}/rollouts?limit=-1&{ten_thousand}",
            b"",
            js,
        ),
        "a search for all of 50,000 ids": lambda: post(
            "/rollouts/search", {"rollout_id_in": list(rollout_ids[:50_000]), "limit": -1}
        ),
        "a search for 100,000 ids": lambda: post(
            "/rollouts/search", {"rollout_id_in": list(rollout_ids), "limit": 10}
        ),
        "a wait for 100,000 ids": lambda: post(
            "/waits/rollouts", {"rollout_ids": list(rollout_ids), "timeout": 0}
        ),
        "summaries of rollouts with many spans": lambda: post(
            "/rollouts/summaries", {"rollout_ids": [*rollout_ids[:499], ids[0]]}
        ),
        "calls of a rollout with many spans": lambda: (
            "GET", f"{api}/rollouts/{ids[0]}/calls", b"", js,
        ),
        "rollouts by a text in their spans": lambda: (
            "GET", f"{api}/rollouts/containing?text=zzzz", b"", js,
        ),
        "groups of a batch": lambda: ("GET", f"{api}/training/groups?run=&batch=", b"", js),
        "costs": lambda: ("GET", f"{api}/training/costs?run=", b"", js),
        "all workers": lambda: ("GET", f"{api}/workers?limit=-1", b"", js),
        "5,000 tasks": lambda: enqueue(5_000, {"question": "Which room?"}),
        "5,000 sequence ids": lambda: post(
            "/spans/next/batch",
            {"ids": [{"rollout_id": ids[0], "attempt_id": ids[1]}] * 5_000},
        ),
        "5,000 spans": lambda: post("/spans/batch", batch(5_000, {"a": 1})),
        "OTLP of 20,000 spans": lambda: post("/v1/traces", otlp(ids, 20_000, 4, "text"), pb),
        "OTLP of 5,000 spans": lambda: post("/v1/traces", otlp(ids, 5_000, 32, "text"), pb),
        "OTLP, gzip of 7 MB": lambda: post(
            "/v1/traces", gzip.compress(otlp(ids, 100, 1, "x" * 70_000)), pb
        ),
        "OTLP in JSON, 5,000 spans": lambda: post(
            "/v1/traces", otlp_json(ids, 5_000, 16)
        ),
        "OTLP in JSON, 1 span of 6 MB": lambda: post(
            "/v1/traces", otlp_json(ids, 1, 100_000)
        ),
        "OTLP of nested values": lambda: post("/v1/traces", otlp_nested(ids, 90), pb),
        "OTLP of deep values": lambda: post("/v1/traces", otlp_nested(ids, 3_000), pb),
        "resources of 8 MB": lambda: post(
            "/resources",
            prompts("x" * MB),
        ),
        "resources of 8 MB of escapes": lambda: post(
            "/resources",
            prompts('\u00e9"\n' * 100_000),
        ),
        "all resources": lambda: ("GET", f"{api}/resources?limit=-1", b"", js),
        "the latest resources": lambda: ("GET", f"{api}/resources/latest", b"", js),
        "a deep task": lambda: post(
            "/queues/rollouts/enqueue",
            b'{"rollouts":[{"input":%b}]}' % (b"[" * 20_000 + b"]" * 20_000),
        ),
        "a deep task of 150": lambda: enqueue(1, json.loads("[" * 150 + "]" * 150)),
        "claims of 10,000": lambda: post(
            "/queues/rollouts/dequeue", {"limit": 10_000, "worker_id": "w"}
        ),
        "a span in a full store": lambda: post("/spans", span_json(ids, {"a": 1}).encode()),
    }  # fmt: skip


async def measure(
    number: int,
    wanted: Sequence[str],
    kind: str = "memory",
    spans: int = SPANS,
    *,
    memory_too: bool = True,
) -> list[tuple[str, float, float, float]]:
    """Return of each request its name, the longest stretch in ms, CPU ms and memory per MB."""
    store: Any = InMemoryLightningStore()
    if kind == "sqlite":
        store = SqliteLightningStore(Path(tempfile.mkdtemp(), "store.db"))
    app = StoreApp(store)
    freeze_memory()  # as servers do
    rollout_ids: list[str] = []
    for _ in range(number // 1_000):
        made = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input={"question": n}, mode="train") for n in range(1_000)]
        )
        rollout_ids += [rollout.rollout_id for rollout in made]
    claim = await store.start_rollout("task")
    ids = (claim.rollout_id, claim.attempt.attempt_id)
    many = [
        Span.from_attributes(
            attributes={f"k{n}": "text" for n in range(16)},
            rollout_id=ids[0],
            attempt_id=ids[1],
            sequence_id=index,
        )
        for index in range(1, spans + 1)
    ]
    await store.add_many_spans(many)
    results: list[tuple[str, float, float, float]] = []
    for name, make in requests(ids, rollout_ids).items():
        if wanted and name not in wanted:
            continue
        target = await store.start_rollout("task")
        own = (target.rollout_id, target.attempt.attempt_id)
        body = (
            make() if "rollout" in name and "span" in name else requests(own, rollout_ids)[name]()
        )
        gc.collect()
        with Held() as held:
            began = time.process_time()
            # A task of its own, whose steps are measured from the first.
            status, sent = await asyncio.create_task(ask(app, body))
            seconds, longest = time.process_time() - began, held.longest
        size = len(body[2])
        memory = await _memory(app, body) if memory_too and size >= SMALL else 0.0
        per_mb = 1000 * seconds / (size / MB) if size >= SMALL else 0.0
        results.append((name, 1000 * longest, per_mb, memory))
        print(
            f"{name:38} {status} {size / 1024:8.0f} kB in {sent / 1024:8.0f} kB out  "
            f"held {1000 * longest:6.1f} ms  CPU {1000 * seconds:7.1f} ms"
            + (f"  {per_mb:6.1f} ms/MB  {memory:4.1f} times its size" if size >= SMALL else ""),
            flush=True,
        )
    return results


async def _memory(app: StoreApp, request: Request) -> float:
    """Return the peak of memory while a request is served, in sizes of its body."""
    gc.collect()
    tracemalloc.start()
    try:
        await ask(app, request)
        return tracemalloc.get_traced_memory()[1] / len(request[2])
    finally:
        tracemalloc.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--store", choices=["memory", "sqlite"], default="memory")
    parser.add_argument(
        "--no-memory", action="store_true", help="do not send each request again to measure memory"
    )
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args(arguments)
    results = asyncio.run(
        measure(
            options.rollouts,
            options.cases,
            options.store,
            options.spans,
            memory_too=not options.no_memory,
        )
    )
    for name, held, cpu, times in results:
        if held > HELD_MS or cpu > CPU_MS or times > TIMES:
            print(f"over: {name}: {held:.0f} ms, {cpu:.0f} ms/MB, {times:.1f} times")


def test_heavy_requests() -> None:
    main([])


if __name__ == "__main__":
    main()
