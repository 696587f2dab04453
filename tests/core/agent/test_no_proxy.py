"""HTTP proxies of the environment, which cannot reach this machine's servers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from agl_algorithm_kit import Baseline
from agl_core.agent import rollout
from agl_core.agent._no_proxy import call_directly
from agl_core.trainer import Trainer
from agl_core.types import LLM, ProxyLLM
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CLOSED = "http://127.0.0.1:9"  # the discard port, which refuses connections


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without proxies; what a test changes is undone."""
    for name in NAMES:
        for each in (name, name.lower()):
            monkeypatch.setenv(each, "")
            monkeypatch.delenv(each)


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server on this machine that has no models."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"object": "list", "data": []}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    thread.join()
    listening.server_close()


def count_models(server: str) -> int:
    with openai.OpenAI(base_url=server, api_key="none", max_retries=0) as client:
        return len(client.models.list().data)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_agents_reach_this_machine_although_a_proxy_is_set(
    server: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, CLOSED)
    with pytest.raises(openai.APIConnectionError):
        count_models(server)

    @rollout
    def agent(task: str) -> float:
        return count_models(server)

    store = InMemoryLightningStore()
    Trainer(strategy="shm", store=store, algorithm=Baseline()).dev(agent, ["a", "b"])
    assert {one.status for one in asyncio.run(store.query_rollouts())} == {"succeeded"}
    said = [record.message for record in caplog.records if "NO_PROXY" in record.message]
    why = "so that agents reach agl's servers"
    assert said == [f"{variable} is set; added 127.0.0.1,localhost,::1 to NO_PROXY, {why}"]


@pytest.mark.parametrize(
    ("model", "hosts"),
    [
        (ProxyLLM(endpoint="http://trainer.lan:4000/v1", model="m"), "trainer.lan"),
        (LLM(endpoint="http://127.0.0.2:8000/v1", model="m"), "127.0.0.2"),
        (LLM(endpoint="https://api.openai.com/v1", model="m"), None),
        (LLM(endpoint="http://[broken/v1", model="m"), None),
    ],
    ids=["agl's proxy", "this machine", "a provider", "not a URL"],
)
async def test_models_of_ours_are_called_directly(
    monkeypatch: pytest.MonkeyPatch, model: LLM, hosts: str | None
) -> None:
    @rollout
    def agent(task: str, llm: LLM) -> float:
        return 1.0

    monkeypatch.setenv("HTTPS_PROXY", CLOSED)
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=InMemoryLightningStore()):
        await runner.step("task", resources={"llm": model})
    assert os.environ.get("NO_PROXY") == os.environ.get("no_proxy") == hosts


def test_what_no_proxy_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", CLOSED)
    monkeypatch.setenv("NO_PROXY", "a.example, localhost")
    monkeypatch.setenv("no_proxy", "b.example")
    call_directly()
    for name in ("NO_PROXY", "no_proxy"):
        assert os.environ[name] == "a.example,localhost,b.example,127.0.0.1,::1"


@pytest.mark.parametrize(
    ("variables", "kept"),
    [({}, None), ({"HTTP_PROXY": CLOSED, "no_proxy": "*"}, "*")],
    ids=["no proxy", "no host goes to the proxy"],
)
def test_nothing_is_changed_or_said_without_need(
    variables: dict[str, str],
    kept: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.DEBUG):
        call_directly()
    assert os.environ.get("NO_PROXY") is None
    assert os.environ.get("no_proxy") == kept
    assert caplog.records == []
