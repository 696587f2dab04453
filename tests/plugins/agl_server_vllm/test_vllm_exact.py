"""Real vLLM behind both proxies: spans hold the tokens that the model read and sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI
from vllm_parts.cases import CASES, TURNS, Case, SDKResult, call
from vllm_parts.recorder import Recorder
from vllm_parts.transformers_process import Transformers

from agl_adapter_trajectory import TraceToTrajectory
from agl_core.plugins import build_component
from agl_core.proxy import LLMProxy
from agl_server_vllm import VLLMServer
from agl_store_memory import InMemoryLightningStore

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

PROXIES = ["direct", "litellm"]
TOLERANCE = 1e-4
"""Tolerance of log-probabilities between vLLM and Transformers, in nats, both in float32."""


Told = tuple[list[int], list[int], list[float]]
"""Token ids of the prompt and of the response, and the response's log-probabilities."""


@dataclass
class Row:
    """One call through a proxy, as every participant recorded it."""

    said: SDKResult
    natively: SDKResult | None
    """The SDK's result from vLLM itself in the same protocol, if the answer is deterministic."""
    span: Told
    raw: Told
    """vLLM's answer to this call."""
    again: Told | None = None
    """vLLM's answer to the same call with token ids requested directly, if deterministic."""
    hf: tuple[float, ...] = ()


Rows = dict[tuple[str, Case], Row]


@pytest.fixture(scope="module")
def server(policy: VLLMServer) -> VLLMServer:
    return policy


@pytest.fixture(scope="module")
def rows(transformers: Transformers, server: VLLMServer, tiny: Path) -> Rows:
    """All calls, made once: a second try of a test looks at the same ones."""
    rows = asyncio.run(make_calls(server))
    computed = transformers.logprobs(tiny, [row.span[:2] for row in rows.values()])
    for row, logprobs in zip(rows.values(), computed, strict=True):
        row.hf = tuple(logprobs)
    return rows


async def make_calls(server: VLLMServer) -> Rows:
    rows: Rows = {}
    async with Recorder(server.base_url.removesuffix("/v1")) as recorder:
        natively: dict[Case, SDKResult] = {}
        for case in CASES:
            if case.kind != "sampled":
                natively[case] = await call(case, server.base_url, server.model)
        for name in PROXIES:
            store = InMemoryLightningStore()
            async with running_proxy(name, server, recorder, store) as proxy:
                for case in CASES:
                    rows[name, case] = await make_call(
                        case, proxy, store, recorder, natively.get(case)
                    )
        for (_, case), row in rows.items():
            if case.kind != "sampled":
                row.again = await ask_again(case, recorder)
    return rows


@asynccontextmanager
async def running_proxy(
    name: str, server: VLLMServer, recorder: Recorder, store: InMemoryLightningStore
) -> AsyncGenerator[LLMProxy]:
    """Run a proxy that reaches the server through the recorder."""
    (entry,) = server.model_list()
    entry["litellm_params"]["api_base"] = f"{recorder.url}/v1"
    spec = {"type": name, "model_list": [entry]}
    proxy = build_component("proxy", spec, inject={"store": store})
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def make_call(
    case: Case,
    proxy: LLMProxy,
    store: InMemoryLightningStore,
    recorder: Recorder,
    natively: SDKResult | None,
) -> Row:
    rollout = await store.start_rollout(input=str(case))
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
    before = len(recorder.calls)
    said = await call(case, llm.endpoint, llm.model)
    (recorded,) = recorder.calls[before:]
    spans = (await store.query_spans(rollout.rollout_id)).items
    (row,) = TraceToTrajectory().adapt(spans)
    end = row.prompt_length
    assert row.mask == [0] * end + [1] * (len(row.mask) - end)
    span = (row.token_ids[:end], row.token_ids[end:], row.logprobs[end:])
    return Row(said, natively, span, recorded.token_ids())


async def ask_again(case: Case, recorder: Recorder) -> Told:
    """Repeat the proxy's call for this case without the proxy."""
    asked = next(
        one
        for one in recorder.calls
        if one.path.endswith("/completions")
        and (one.path == "/v1/completions") == (case.protocol == "completions")
        and case.question in json.dumps(one.request)
    )
    body = {**asked.request, "stream": False, "return_token_ids": True}
    body.pop("stream_options", None)
    async with (
        aiohttp.ClientSession() as session,
        session.post(recorder.url + asked.path, json=body) as reply,
    ):
        answer = await reply.text()
        assert reply.status == 200, answer
    return recorder.calls[-1].token_ids()


def test_the_tiny_model_behaves_as_the_cases_assume(rows: Rows):
    """Check that each case shows the behaviour in its name."""
    for (_, case), row in rows.items():
        if case.kind == "tools":
            assert row.said.tool == ("get_weather", {"city": "Paris"}), case
        elif case.kind == "greedy":
            assert row.said.text == "Fine, thank you. And you?", case
        else:
            assert row.said.tool is None, case


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("case", CASES, ids=str)
class TestEachCall:
    def test_the_span_equals_vllms_answer(self, rows: Rows, proxy: str, case: Case):
        row = rows[proxy, case]
        prompt, ids, logprobs = row.span
        assert (prompt, ids, logprobs) == row.raw
        assert len(ids) == len(logprobs) == row.said.usage[1]
        assert len(prompt) == row.said.usage[0]

    def test_the_agent_gets_vllms_own_answer(self, rows: Rows, proxy: str, case: Case):
        row = rows[proxy, case]
        if case.kind == "sampled":
            assert row.natively is None
            return
        assert row.said == row.natively
        assert row.again is not None
        assert row.span[:2] == row.again[:2]
        assert row.span[2] == pytest.approx(row.again[2], abs=1e-5)

    def test_transformers_agree(self, rows: Rows, proxy: str, case: Case):
        row = rows[proxy, case]
        assert row.span[2] == pytest.approx(list(row.hf), abs=TOLERANCE)


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("protocol", list(TURNS))
async def test_turns_with_a_tool_become_one_row(server: VLLMServer, proxy: str, protocol: str):
    store = InMemoryLightningStore()
    async with (
        Recorder(server.base_url.removesuffix("/v1")) as recorder,
        running_proxy(proxy, server, recorder, store) as running,
    ):
        rollout = await store.start_rollout(input=protocol)
        llm = running.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        said = await TURNS[protocol](llm.endpoint, llm.model)
    assert said == "It is sunny in Paris."
    spans = (await store.query_spans(rollout.rollout_id)).items
    (row,) = TraceToTrajectory().adapt(spans)
    first, second = (call.token_ids() for call in recorder.calls)
    assert [row.token_ids[start:end] for start, end in row.responses] == [first[1], second[1]]
    assert row.token_ids == second[0] + second[1]
    assert row.token_ids[: len(first[0] + first[1])] == first[0] + first[1]
    assert [value for value, on in zip(row.logprobs, row.mask, strict=True) if on] == [
        *first[2],
        *second[2],
    ]


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_truncated_answer_is_complete_in_the_span(
    server: VLLMServer, proxy: str, streamed: bool
):
    store = InMemoryLightningStore()
    async with (
        Recorder(server.base_url.removesuffix("/v1")) as recorder,
        running_proxy(proxy, server, recorder, store) as running,
    ):
        rollout = await store.start_rollout(input="cut")
        llm = running.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            reply: Any = await client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": "Count to five."}],
                temperature=0,
                max_tokens=3,
                stream=streamed,
            )
            if streamed:
                assert [c.choices[0].finish_reason async for c in reply][-1] == "length"
    (span,) = (await store.query_spans(rollout.rollout_id)).items
    attributes: dict[str, Any] = dict(span.attributes)
    assert list(attributes["gen_ai.response.finish_reasons"]) == ["length"]
    assert list(attributes["response_token_ids"]) == recorder.calls[0].token_ids()[1]
    assert len(attributes["response_token_ids"]) == 3


def test_the_figures(rows: Rows, capsys: pytest.CaptureFixture[str]):
    """Print the largest difference of log-probabilities per case, in nats."""
    lines = [f"{'proxy':8} {'call':28} tokens  ids   vs vLLM   vs Transformers"]
    worst = 0.0
    for (proxy, case), row in rows.items():
        same = "same" if row.span[:2] == row.raw[:2] else "NOT"
        to_vllm, to_hf = apart(row.span[2], row.raw[2]), apart(row.span[2], row.hf)
        worst = max(worst, to_hf)
        lines.append(
            f"{proxy:8} {case!s:28} {len(row.span[1]):6}  {same}  {to_vllm:8.1e}  {to_hf:8.1e}"
        )
    lines.append(f"worst of {len(rows)} calls: {worst:.1e}")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert worst < TOLERANCE


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
