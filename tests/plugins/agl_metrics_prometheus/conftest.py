"""A page over ASGI, and its text as values."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agl_metrics_prometheus import totals


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read an exposition with the client library's parser: values by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def fetch(app: Any, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body of a request to an ASGI app."""
    sent: dict[str, list[Any]] = defaultdict(list)

    async def send(message: Any) -> None:
        sent[message["type"]].append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/v1/prometheus/", "headers": pairs}
    await app(scope, None, send)
    (start,) = sent["http.response.start"]
    body = b"".join(part["body"] for part in sent["http.response.body"])
    return start["status"], dict(start["headers"])[b"content-type"].decode(), body.decode()


@pytest.fixture(autouse=True)
def no_folder_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    totals._all.clear()  # a timer may hold those of the test before
