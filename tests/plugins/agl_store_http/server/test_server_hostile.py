"""A table of hostile requests to `agl store` in a process of its own: answer, CPU time, memory.

Every store is served with and without auth. With auth the requests carry an attempt token, the
weakest one that may write.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from agl_core.types import Span

pytestmark = pytest.mark.slow

SECRET = "a-secret-of-the-operator"
MB = 2**20
MAX_CPU = 2.0
MAX_GROWTH_MB = 50
JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/x-protobuf"


class Server:
    """A server process, and one claimed attempt in it."""

    def __init__(self, process: subprocess.Popen[str], port: int, secret: str | None) -> None:
        self.port = port
        self.process = psutil.Process(process.pid)
        self.admin = secret
        self.token = secret
        tasks = {"rollouts": [{"input": 1}, {"input": 2}]}
        self.send("POST", "/v1/agl/queues/rollouts/enqueue", tasks)
        claim = json.loads(self.send("POST", "/v1/agl/queues/rollouts/dequeue", {})[1])[0]
        self.rollout_id, self.attempt_id = claim["rollout_id"], claim["attempt"]["attempt_id"]
        self.token = claim.get("attempt_token")

    def send(
        self, method: str, path: str, body: Any = b"", token: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        token = token or self.token
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": JSON_TYPE}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, data, sent)
            # A response of a connection that the server closes owns the socket from here on.
            with connection.getresponse() as response:
                return response.status, response.read()
        finally:
            connection.close()

    def span(self, **fields: Any) -> dict[str, Any]:
        span = Span.from_attributes(
            attributes={},
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            span_id="f" * 16,
            name="n",
            start_time=1.0,
            end_time=2.0,
        )
        return span.model_dump(mode="json") | fields

    def cost(self) -> tuple[float, float]:
        times = self.process.cpu_times()
        return times.user + times.system, self.process.memory_info().rss / MB


@dataclass(frozen=True)
class Request:
    name: str
    method: str
    path: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    admin: bool = False
    """Sent with the operator's secret: the request needs more than an attempt token."""


def message(number: int, content: bytes) -> bytes:
    """Return an encoded message as a field of another, in protobuf."""
    size, length = bytearray(), len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content


def otlp_spans(count: int, span: bytes = b"", resource: bytes = b"") -> bytes:
    """Return an OTLP request of equal spans; empty ones are as small as protobuf can write them."""
    return message(1, message(1, resource) + message(2, message(2, span) * count))


def otlp_attribute(name: str, value: str) -> bytes:
    return message(1, name.encode()) + message(2, message(1, value.encode()))


def requests_to(server: Server) -> Iterator[Request]:
    spans, otlp = "/v1/agl/spans", "/v1/traces"
    largest = server.span(sequence_id=2**63 - 1)
    draw = {"rollout_id": server.rollout_id, "attempt_id": server.attempt_id}
    packed = {"content_type": PROTOBUF_TYPE, "content_encoding": "gzip"}
    yield Request("largest sequence id", "POST", spans, largest)
    yield Request("draw after it", "POST", f"{spans}/next", draw)
    yield Request("sequence id of 70 bits", "POST", spans, server.span(sequence_id=2**70))
    yield Request("attempt id latest", "POST", spans, server.span(attempt_id="latest"))
    for size in (50_000, 100_000):
        long = server.span(span_id="\x1b[31m" + "a" * size)
        yield Request(f"span id of {size}", "POST", spans, long)
        yield Request(f"the same again ({size})", "POST", spans, long)
    same = json.dumps({"spans": [server.span()] * 5_000}).encode()
    yield Request("5,000 times one span", "POST", f"{spans}/batch", same)
    many = b'{"spans":[%b]}' % b",".join([b"{}"] * 700_000)
    yield Request("700,000 objects as spans", "POST", f"{spans}/batch", many)
    ones = b'{"rollouts":[%b]}' % b",".join([b"1"] * 1_000_000)
    enqueue = "/v1/agl/queues/rollouts/enqueue"
    yield Request("1,000,000 numbers as rollouts", "POST", enqueue, ones, admin=True)
    yield Request("100,000 ids to draw", "POST", f"{spans}/next/batch", {"ids": [draw] * 100_000})
    yield Request(
        "100,000 spans in 320 B gzip", "POST", otlp, gzip.compress(otlp_spans(100_000)), packed
    )
    bomb = gzip.compress(otlp_spans(30_000_000))
    yield Request("30,000,000 spans in gzip", "POST", otlp, bomb, packed)
    yield Request("corrupt gzip", "POST", otlp, b"\x1f\x8b" + b"x" * 100, packed)
    plain = {"content_type": PROTOBUF_TYPE}
    yield Request("4,900 empty spans", "POST", otlp, otlp_spans(4_900), plain)
    for count, size in ((16_000_000, 0), (4_000_000, 1), (400_000, 0)):
        attributes = message(9, b"\x0a" * size) * count
        body = gzip.compress(otlp_spans(1, attributes), 1)
        yield Request(f"{count:,} attributes of {size} B", "POST", otlp, body, packed)
    for number, part in ((11, "events"), (13, "links")):
        for count in (8_000_000, 400_000):
            body = gzip.compress(otlp_spans(1, message(number, b"") * count), 1)
            yield Request(f"{count:,} empty {part}", "POST", otlp, body, packed)
    named = b"".join(message(9, otlp_attribute(f"k{i}", "")) for i in range(200_000))
    yield Request("200,000 named attributes", "POST", otlp, otlp_spans(1, named), plain)
    owner = ("agentlightning.rollout_id", server.rollout_id)
    attempt = ("agentlightning.attempt_id", server.attempt_id)
    own = b"".join(message(1, otlp_attribute(*pair)) for pair in (owner, attempt, ("x", MB * "x")))
    body = otlp_spans(4_900, resource=own)
    yield Request("4,900 spans, resource of 1 MB", "POST", otlp, body, plain)
    for name, count in (("200,000 attributes", 200_000), ("2,000,000 attributes", 2_000_000)):
        attributes = {f"k{i}": i for i in range(count)}
        yield Request(name, "POST", spans, server.span(attributes=attributes))
    for field_of, item in (("events", {"name": "e"}), ("links", {})):
        few = [item] * 1_000_000
        yield Request(f"1,000,000 {field_of}", "POST", spans, server.span(**{field_of: few}))
    yield Request("random bytes", "POST", otlp, os.urandom(1000), plain)
    braces = b'{"resourceSpans":[%b]}' % b",".join([b"{}"] * 2_000_000)
    yield Request("2,000,000 resources as JSON", "POST", otlp, braces)
    yield Request("deep JSON", "POST", spans, b"[" * 1_000_000)
    yield Request("deep OTLP JSON", "POST", otlp, b'{"resourceSpans":' + b"[" * 1_000_000)
    deep = b'{"status":"running","metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    latest = f"/v1/agl/rollouts/{server.rollout_id}/attempts/latest"
    yield Request("deep metadata", "POST", latest, deep, admin=True)
    for text in (b"NaN", b"1e999", b"-Infinity"):
        body = b'{"status":"running","last_heartbeat_time":%b}' % text
        yield Request(f"time {text.decode()}", "POST", latest, body, admin=True)
    surrogate = b'{"rollout_id":"\\ud800","attempt_id":"x"}'
    yield Request("lone surrogate", "POST", f"{spans}/next", surrogate)
    yield Request("encoded NUL in an id", "GET", "/v1/agl/rollouts/%00%0a%1b", b"")
    yield Request("path of 60 kB", "GET", "/v1/agl/rollouts/" + "a" * 60_000, b"", admin=True)
    fields = "&".join(["status_in=x"] * 5_000)
    yield Request("5,000 wrong filters", "GET", f"/v1/agl/rollouts?{fields}", b"", admin=True)
    negative = f"{spans}?rollout_id={server.rollout_id}&limit=-9&offset=-1"
    yield Request("negative page", "GET", negative, b"")
    yield Request("limit of 70 bits", "GET", f"/v1/agl/rollouts?limit={2**70}", b"", admin=True)
    yield Request(
        "sort by a field of Python", "GET", "/v1/agl/rollouts?sort_by=__class__", b"", admin=True
    )
    yield Request("body of 70 MB", "POST", spans, b" " * 70_000_000)
    yield Request("key of 10 kB", "POST", spans, server.span(), {"idempotency_key": "k" * 10_000})


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[None, SECRET], ids=["open", "auth"])
def served(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "agl_cli_kit", "store", "--port", "0", "--backend", backend]
    if backend == "sqlite":
        command += ["--path", str(tmp_path / "store.db")]
    environment = dict(os.environ)
    environment.pop("AGL_AUTH_TOKEN", None)
    if request.param:
        environment["AGL_AUTH_TOKEN"] = request.param
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+)", line)
        assert found, (line, (tmp_path / "log").read_text())
        yield Server(process, int(found[1]), request.param)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM), "SIGTERM must end the server"
        process.stdout.close()
        log.close()


def test_no_request_stops_or_swells_the_server(served: Server, backend: str) -> None:
    print(f"\n{backend}, {'auth' if served.admin else 'open'}")
    print(f"{'input':32} {'answer':>6} {'CPU s':>7} {'wall s':>7} {'MB':>7} {'bytes':>9}")
    wrong: list[str] = []
    for request in requests_to(served):
        cpu, memory = served.cost()
        started = time.perf_counter()
        token = served.admin if request.admin else None
        try:
            status, answer = served.send(
                request.method, request.path, request.body, token, **request.headers
            )
        except (ConnectionError, BrokenPipeError):
            status, answer = 0, b""  # the server closed the connection on a body it does not take
        wall = time.perf_counter() - started
        cpu_after, memory_after = served.cost()
        cpu, memory = cpu_after - cpu, memory_after - memory
        line = f"{request.name:32} {status:6} {cpu:7.2f} {wall:7.2f} {memory:7.1f} {len(answer):9}"
        print(line)
        if status >= 500 or cpu > MAX_CPU or memory > MAX_GROWTH_MB or len(answer) > MB:
            wrong.append(f"{line} {answer[:200]!r}")
    status, body = served.send("GET", f"/v1/agl/rollouts/{served.rollout_id}")
    assert (status, json.loads(body)["rollout_id"]) == (200, served.rollout_id)
    assert not wrong, "\n".join(wrong)
