"""Programs that an agent starts: their calls are recorded by the variables that it gives them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

from agl_core.agent import child_environment
from agl_core.semconv import ATTEMPT_ID, ROLLOUT_ID
from agl_core.types import LLM, AttemptedRollout
from agl_scripted import ScriptedModels, tokenize
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

OPENAI = """
from openai import OpenAI
OpenAI().chat.completions.create(model="q", messages=[{"role": "user", "content": "hi"}])
"""
AZURE = """
from openai import AzureOpenAI
client = AzureOpenAI(api_version="2024-10-21")
client.chat.completions.create(model="q", messages=[{"role": "user", "content": "hi"}])
"""
ANTHROPIC = """
from anthropic import Anthropic
ask = [{"role": "user", "content": "hi"}]
Anthropic().messages.create(model="q", max_tokens=9, messages=ask)
"""
CURL = """
import json, os, urllib.request
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
           "traceparent": os.environ["TRACEPARENT"], "content-type": "application/json"}
body = json.dumps({"model": "q", "messages": [{"role": "user", "content": "hi"}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
"""


async def run(program: str, variables: dict[str, str]) -> None:
    mine = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        env={**mine, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    assert child.returncode == 0, said.decode()


@pytest.mark.parametrize("secret", [None, "a-secret-of-good-length"])
@pytest.mark.parametrize("program", [OPENAI, AZURE, ANTHROPIC, CURL])
async def test_calls_of_a_child_process_are_recorded(
    serve: Any,
    backend: Any,
    claim: AttemptedRollout,
    models: ScriptedModels,
    store: InMemoryLightningStore,
    program: str,
    secret: str | None,
):
    proxy = await serve(backend(models), auth_token=secret)
    rollout_id, attempt_id = claim.rollout_id, claim.attempt.attempt_id
    llm = proxy.as_resource(rollout_id, attempt_id)
    tracer = OtelTracer()
    with tracer.lifespan(store):
        async with tracer.trace_context(rollout_id=rollout_id, attempt_id=attempt_id):
            with tracer.operation_context("work"):
                await run(program, child_environment(llm))
    spans = (await store.query_spans(rollout_id)).items
    (call,) = [span for span in spans if "response_token_ids" in span.attributes]
    expected = [token.id for token in tokenize("Hello there my friend")]
    assert call.attributes["response_token_ids"] == expected
    if program is CURL:  # it passes the context on
        (work,) = [span for span in spans if span is not call]
        assert (call.parent_id, call.trace_id) == (work.span_id, work.trace_id)


def test_the_variables_name_attempt_and_keep_other_attributes(monkeypatch: pytest.MonkeyPatch):
    llm = LLM(endpoint="http://h:1/rollout/r%201/attempt/a-1/v1/", model="m")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=agent")
    found = child_environment(llm)
    ids = f"{ROLLOUT_ID}=r%25201,{ATTEMPT_ID}=a-1"
    assert found["OTEL_RESOURCE_ATTRIBUTES"] == f"service.name=agent,{ids}"
    assert found["OPENAI_BASE_URL"] == "http://h:1/rollout/r%201/attempt/a-1/v1"
    assert found["ANTHROPIC_BASE_URL"] == "http://h:1/rollout/r%201/attempt/a-1"
    assert found["OPENAI_API_KEY"] == "none"
    assert "TRACEPARENT" not in found
    plain = child_environment(LLM(endpoint="http://h:1/v1", model="m", api_key="k"))
    assert (plain["ANTHROPIC_API_KEY"], "OTEL_RESOURCE_ATTRIBUTES" in plain) == ("k", False)
