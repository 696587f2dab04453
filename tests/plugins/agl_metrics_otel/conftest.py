"""A collector: a real HTTP server that takes OTLP metrics."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Collector:
    """Keeps the requests that it gets, and adds the values of processes up."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportMetricsServiceRequest.FromString(body)
                with collector.arrived:
                    collector.requests.append((self.path, dict(self.headers), request))
                    collector.arrived.notify_all()
                reply = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def resources(self) -> list[dict[str, str]]:
        """Return the resource attributes of each process, in order of their first request."""
        found: dict[str, dict[str, str]] = {}
        for part in self._parts():
            about = {pair.key: pair.value.string_value for pair in part.resource.attributes}
            found.setdefault(about["service.instance.id"], about)
        return list(found.values())

    def values(self) -> dict[tuple[str, tuple[str, ...]], Any]:
        """Return the last values by name and label values, of all processes together."""
        latest: dict[tuple[str, str, tuple[str, ...]], Any] = {}
        for part in self._parts():
            about = {pair.key: pair.value.string_value for pair in part.resource.attributes}
            for metric in (m for scope in part.scope_metrics for m in scope.metrics):
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    labels = tuple(pair.value.string_value for pair in point.attributes)
                    value: Any = point
                    if kind != "histogram":
                        value = getattr(point, point.WhichOneof("value"))
                    latest[about["service.instance.id"], metric.name, labels] = value
        merged: dict[tuple[str, tuple[str, ...]], Any] = {}
        for (_, name, labels), value in latest.items():
            key = (name, labels)
            if hasattr(value, "bucket_counts"):
                total = 0
                buckets: dict[float, int] = {}
                for bound, count in zip(value.explicit_bounds, value.bucket_counts, strict=False):
                    total += count
                    buckets[bound] = total
                merged[key] = (value.count, value.sum, buckets)
            else:
                merged[key] = merged.get(key, 0) + value
        return merged

    def _parts(self) -> Iterator[Any]:
        with self.arrived:
            for _, _, request in self.requests:
                yield from request.resource_metrics


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.stop()
