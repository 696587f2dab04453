"""The Hugging Face server: its contract, and the truth of its token ids and log-probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_core.errors import LLMServerError
from agl_server_hf import HFServer
from agl_server_hf.weights import with_weights
from agl_testing.llm_server import LLMServerSuite, chat, text_of
from agl_tiny_model import WEATHER_TOOL
from tests.processes import is_running

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

PARIS = [{"role": "user", "content": "How is the weather in Paris?"}]


class TestHFServerConformance(LLMServerSuite):
    flags = frozenset({"weights", "token_ids"})

    @pytest.fixture
    def server(self, taught: Path) -> HFServer:
        return HFServer(taught, threads=1)

    @pytest.fixture
    def new_weights(self, models: Path) -> Path:
        return models / "random"


async def post(server: HFServer, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/{path}", json={"model": server.model, **body}) as reply,
    ):
        assert reply.status == status, await reply.text()
        return await reply.json()


async def stream(server: HFServer, path: str, **body: Any) -> list[dict[str, Any]]:
    body = {"model": server.model, "stream": True, **body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/{path}", json=body) as reply,
    ):
        lines = [line[6:].strip() async for line in reply.content if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


class Reference:
    """A plain forward pass of a model, without cache, batch or padding."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def logprobs(self, prompt: list[int], answer: list[int]) -> list[float]:
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + answer])).logits[0].double()
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return rows[torch.arange(len(answer)), torch.tensor(answer)].tolist()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                ids.append(int(self.model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]


@pytest.fixture(scope="module")
def reference(taught: Path) -> Reference:
    return Reference(taught)


@pytest.fixture(scope="module")
def random_reference(models: Path) -> Reference:
    return Reference(models / "random")


@contextlib.contextmanager
def running(server: HFServer) -> Iterator[HFServer]:
    asyncio.run(server.start())
    try:
        yield server
    finally:
        asyncio.run(server.stop())


# A server takes seconds to start: tests that leave it as it is share one.
@pytest.fixture(scope="module")
def taught_server(taught: Path) -> Iterator[HFServer]:
    with running(HFServer(taught, threads=1, seed=0)) as server:
        yield server


@pytest.fixture(scope="module")
def random_server(models: Path) -> Iterator[HFServer]:
    # Batches of 5, so that sequences wait, join and leave.
    with running(HFServer(models / "random", threads=1, seed=3, max_batch_size=5)) as server:
        yield server


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


# -- tokens ---------------------------------------------------------------------------------------


async def test_batched_logprobs_equal_those_of_a_plain_forward_pass(
    random_server: HFServer, random_reference: Reference
):
    # Prompts and answers of all lengths, so that sequences join and leave a padded batch.
    asks = [
        {"messages": [{"role": "user", "content": "x" * (7 * i)}], "max_tokens": 3 + 5 * (i % 4)}
        for i in range(12)
    ]
    options: dict[str, Any] = {"logprobs": True, "return_token_ids": True, "n": 2}
    bodies = await asyncio.gather(
        *(post(random_server, "chat/completions", **options, **ask) for ask in asks)
    )
    for body, ask in zip(bodies, asks, strict=True):
        assert len({tuple(choice["token_ids"]) for choice in body["choices"]}) == 2
        for choice in body["choices"]:
            ids = choice["token_ids"]
            assert len(ids) <= ask["max_tokens"]
            expected = random_reference.logprobs(body["prompt_token_ids"], ids)
            assert logprobs_of(choice) == pytest.approx(expected, abs=2e-5)


async def test_greedy_answers_equal_those_of_a_plain_forward_pass(
    random_server: HFServer, random_reference: Reference
):
    body = await post(
        random_server, "completions", prompt="One, two", temperature=0, max_tokens=12,
        ignore_eos=True, return_token_ids=True, logprobs=3,
    )  # fmt: skip
    (choice,) = body["choices"]
    assert choice["token_ids"] == random_reference.greedy(choice["prompt_token_ids"], 12)
    best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"]]
    assert best == pytest.approx(choice["logprobs"]["token_logprobs"])
    # Entries are keyed by text; tokens that are parts of characters may share a key.
    assert all(1 <= len(top) <= 3 for top in choice["logprobs"]["top_logprobs"])
    assert choice["finish_reason"] == "length"


async def test_samples_follow_the_models_distribution(
    random_server: HFServer, random_reference: Reference
):
    ask: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1, "return_token_ids": True}
    body = await post(random_server, "completions", n=256, temperature=0.5, **ask)
    narrow = await post(random_server, "completions", n=64, top_k=2, **ask)
    nucleus = await post(random_server, "completions", n=64, top_p=0.05, **ask)
    with torch.no_grad():
        logits = random_reference.model(torch.tensor([[5, 6, 7]])).logits[0, -1]
    hot = (logits / 0.5).softmax(-1)
    drawn = torch.tensor([choice["token_ids"][0] for choice in body["choices"]])
    # The mean probability of the drawn tokens is within four standard errors of its expectation.
    mean, square = (hot * hot).sum(), (hot**3).sum()
    error = ((square - mean**2) / 256).sqrt()
    assert abs(hot[drawn].mean() - mean) < 4 * error
    order = logits.argsort(descending=True).tolist()
    assert {choice["token_ids"][0] for choice in narrow["choices"]} <= set(order[:2])
    plain = logits.softmax(-1)
    size = next(n for n in range(1, len(order)) if plain[order[:n]].sum() >= 0.05)
    assert {choice["token_ids"][0] for choice in nucleus["choices"]} <= set(order[:size])


async def test_a_seed_repeats_an_answer_whatever_else_is_in_the_batch(random_server: HFServer):
    ask: dict[str, Any] = {"prompt": "One", "max_tokens": 8, "return_token_ids": True}
    first, *_ = await asyncio.gather(
        post(random_server, "completions", seed=9, **ask), *(chat(random_server) for _ in range(3))
    )
    second = await post(random_server, "completions", seed=9, **ask)
    other = await post(random_server, "completions", seed=10, **ask)
    ids = [body["choices"][0]["token_ids"] for body in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]


# -- the protocol ---------------------------------------------------------------------------------


async def test_a_tool_is_called_and_its_result_is_used(
    taught_server: HFServer, reference: Reference
):
    ask: dict[str, Any] = {"tools": [WEATHER_TOOL], "temperature": 0, "return_token_ids": True}
    first = await post(taught_server, "chat/completions", messages=PARIS, **ask)
    said = first["choices"][0]["message"]
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert said["content"] is None
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    second = await post(taught_server, "chat/completions", messages=[*PARIS, said, result], **ask)
    assert text_of(second) == "It is sunny in Paris."
    before = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(before)] == before


@pytest.mark.parametrize("tools", [True, False])
async def test_a_stream_equals_the_unstreamed_answer(taught_server: HFServer, tools: bool):
    ask: dict[str, Any] = {
        "messages": PARIS if tools else [{"role": "user", "content": "Count to five."}],
        "tools": [WEATHER_TOOL] if tools else None,
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
    }
    whole = await post(taught_server, "chat/completions", **ask)
    chunks = await stream(
        taught_server, "chat/completions", stream_options={"include_usage": True}, **ask
    )
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks.pop()["usage"] == whole["usage"]
    parts = [chunk["choices"][0] for chunk in chunks[1:]]
    (expected,) = whole["choices"]
    assert [i for part in parts for i in part["token_ids"]] == expected["token_ids"]
    # The second prompt is in the cache, so its sums are in another order.
    streamed = [p for part in parts for p in logprobs_of(part)]
    assert streamed == pytest.approx(logprobs_of(expected), abs=2e-5)
    text = "".join(part["delta"]["content"] for part in parts)
    assert text == (expected["message"]["content"] or "")
    assert parts[-1]["finish_reason"] == expected["finish_reason"]
    called = [c["function"] for part in parts for c in part["delta"].get("tool_calls", ())]
    assert called == [c["function"] for c in expected["message"].get("tool_calls", ())]
    assert bool(called) == tools
    if not tools:
        assert len([part for part in parts if part["delta"]["content"]]) > 3


async def test_a_stop_text_ends_the_answer_before_it(taught_server: HFServer):
    ask: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Count to five."}],
        "temperature": 0,
        "stop": [", three"],
    }
    body = await post(taught_server, "chat/completions", **ask)
    chunks = await stream(taught_server, "chat/completions", **ask)
    cut = await post(taught_server, "chat/completions", **{**ask, "stop": None, "max_tokens": 3})
    assert text_of(body) == "One, two"
    assert body["choices"][0]["finish_reason"] == "stop"
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == "One, two"
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3


async def test_unsupported_requests_are_refused(taught_server: HFServer):
    refused: list[tuple[dict[str, Any], str]] = [
        ({"messages": []}, "messages"),
        ({"messages": PARIS, "temperature": -1}, "temperature"),
        ({"messages": PARIS, "seed": 2**63}, "seed"),
        ({"messages": PARIS, "presence_penalty": 0.5}, "presence_penalty"),
        ({"messages": PARIS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": PARIS, "tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text only"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, "maximum context length"),
        ({"messages": PARIS, "max_tokens": 4000}, "maximum context length"),
    ]
    for body, said in refused:
        answer = await post(taught_server, "chat/completions", status=400, **body)
        assert said in answer["error"]["message"]
    answer = await post(taught_server, "completions", status=400, prompt=[10**6])
    assert "token id" in answer["error"]["message"]
    assert await chat(taught_server)


async def test_a_truncated_tool_call_stays_text(taught_server: HFServer):
    body = await post(
        taught_server, "chat/completions", messages=PARIS, tools=[WEATHER_TOOL], temperature=0,
        max_tokens=6,
    )  # fmt: skip
    said = body["choices"][0]["message"]
    assert "tool_calls" not in said
    assert said["content"].startswith("<tool_call>")
    assert body["choices"][0]["finish_reason"] == "length"


# -- weights --------------------------------------------------------------------------------------


async def test_each_answer_comes_from_one_model_while_weights_change(
    models: Path, reference: Reference, random_reference: Reference
):
    """Each answer before, during and after updates matches the old or the new model, not both."""
    async with HFServer(models / "taught", threads=1) as server:

        async def ask() -> dict[str, Any]:
            return await post(
                server, "chat/completions", messages=PARIS, temperature=0, max_tokens=24,
                ignore_eos=True, logprobs=True, return_token_ids=True,
            )  # fmt: skip

        first = await ask()
        requests = [asyncio.ensure_future(ask()) for _ in range(4)]
        for number in range(3):
            folder = models / ("random" if number % 2 == 0 else "taught")
            update = asyncio.ensure_future(server.update_weights(folder, version=str(number)))
            requests += [asyncio.ensure_future(ask()) for _ in range(4)]
            await update
        bodies = await asyncio.gather(*requests)
        last = await ask()
    seen = set()
    for body in [first, *bodies, last]:
        (choice,) = body["choices"]
        matches = [
            logprobs_of(choice)
            == pytest.approx(r.logprobs(body["prompt_token_ids"], choice["token_ids"]), abs=1e-4)
            for r in (reference, random_reference)
        ]
        assert matches.count(True) == 1
        seen.add(matches.index(True))
    assert seen == {0, 1}
    assert matches == [False, True]


async def test_adapters_are_replaced_in_place(models: Path, reference: Reference):
    peft = pytest.importorskip("peft")
    async with HFServer(models / "taught", threads=1) as server:
        for number, name in enumerate(("lora-0", "lora-1", "lora-0")):
            await server.update_weights(models / name, version=f"step-{number}")
            body = await chat(server, logprobs=True, return_token_ids=True)
            base = AutoModelForCausalLM.from_pretrained(models / "taught", dtype=torch.float32)
            adapted = Reference.__new__(Reference)
            adapted.model = peft.PeftModel.from_pretrained(base, models / name).eval()
            (choice,) = body["choices"]
            expected = adapted.logprobs(body["prompt_token_ids"], choice["token_ids"])
            assert logprobs_of(choice) == pytest.approx(expected, abs=2e-5)
            other = reference.logprobs(body["prompt_token_ids"], choice["token_ids"])
            assert logprobs_of(choice) != pytest.approx(other, abs=0.1)
        with pytest.raises(LLMServerError, match="whole model"):
            await server.update_weights(models / "random", version="no")
        assert server.model_version == "step-2"


async def test_each_adapter_answers_its_own_calls_in_one_batch(models: Path, reference: Reference):
    peft = pytest.importorskip("peft")
    folders = {"one": models / "lora-0", "v1.1": models / "lora-1"}
    references: dict[str, Reference] = {}
    for name, folder in folders.items():
        base = AutoModelForCausalLM.from_pretrained(models / "taught", dtype=torch.float32)
        references[name] = Reference.__new__(Reference)
        references[name].model = peft.PeftModel.from_pretrained(base, folder).eval()
    async with HFServer(models / "taught", threads=1) as server:
        for name, folder in folders.items():
            await server.load_adapter(name, folder)
        assert [entry["model_name"] for entry in server.model_list()] == ["taught", "one", "v1.1"]

        async def check(name: str, reference: Reference, **others: Reference) -> None:
            body = await post(
                *(server, "chat/completions"),
                model=name,
                messages=PARIS,
                logprobs=True,
                return_token_ids=True,
                max_tokens=24,
                ignore_eos=True,
                seed=7,  # a sample for which two adapters agree is rare, and possible
            )
            assert body["model"] == name
            (choice,) = body["choices"]
            tokens = body["prompt_token_ids"], choice["token_ids"]
            assert logprobs_of(choice) == pytest.approx(reference.logprobs(*tokens), abs=2e-5)
            for other in others.values():
                assert logprobs_of(choice) != pytest.approx(other.logprobs(*tokens), abs=0.1)

        one, two = references["one"], references["v1.1"]
        await asyncio.gather(
            *[check("taught", reference, one=one, two=two) for _ in range(3)],
            *[check("one", one, base=reference, two=two) for _ in range(3)],
            *[check("v1.1", two, base=reference, one=one) for _ in range(3)],
        )
        # A later adapter of a name replaces it; the others stay.
        await server.load_adapter("one", folders["v1.1"])
        await asyncio.gather(check("one", two, old=one), check("taught", reference, one=one))
        with pytest.raises(LLMServerError, match="no LoRA adapter"):
            await server.load_adapter("three", models / "random")
        with pytest.raises(LLMServerError, match="own name"):
            await server.load_adapter("taught", folders["one"])
        error = await post(server, "completions", 404, model="three", prompt="a")
        assert "'taught', 'one', 'v1.1', not 'three'" in error["error"]["message"]
        # The server's own model may become an adapter as well.
        await server.update_weights(folders["one"], version="step-1")
        await asyncio.gather(check("taught", one, old=reference), check("one", two, own=one))
        await server.stop()
        await server.start()
        assert [entry["model_name"] for entry in server.model_list()] == ["taught"]


@pytest.mark.parametrize(
    "said",
    [
        {"rank_pattern": {"o_proj": 8}},
        {"layers_to_transform": [0]},
        {"use_rslora": True},
        {"alpha_pattern": {"o_proj": 2}},
    ],
)
def test_an_adapter_of_another_form_leaves_the_old_one(
    models: Path, tmp_path: Path, said: dict[str, Any]
):
    """PEFT would load the matrices that fit, and keep the scale."""
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(models / "taught", dtype=torch.float32)
    config = peft.LoraConfig.from_pretrained(models / "lora-0")
    for name, value in said.items():
        setattr(config, name, value)
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(models / "taught", dtype=torch.float32)
    served = with_weights(base, models / "lora-0")
    before = {name: tensor.clone() for name, tensor in served.state_dict().items()}
    with pytest.raises(LLMServerError, match="another shape or scale"):
        with_weights(served, tmp_path)
    after = served.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


async def test_weights_of_another_shape_are_refused(models: Path, tmp_path: Path):
    async with HFServer(models / "taught", threads=1) as server:
        before = text_of(await chat(server))
        for folder, why in (("wide", "shape"), ("nowhere", "config.json")):
            with pytest.raises(LLMServerError, match=why):
                await server.update_weights(models / folder, version="1")
        broken = tmp_path / "broken"
        broken.mkdir()
        for name in ("config.json", "model.safetensors"):
            data = (models / "random" / name).read_bytes()
            (broken / name).write_bytes(data if name == "config.json" else data[:-1000])
        with pytest.raises(LLMServerError, match="cannot be loaded"):
            await server.update_weights(broken, version="1")
        (broken / "adapter_config.json").write_text("{}")
        with pytest.raises(LLMServerError, match="adapter"):
            await server.update_weights(broken, version="1")
        assert text_of(await chat(server)) == before
        assert server.model_version == "0"


# -- process ---------------------------------------------------------------------------------------


async def test_a_killed_server_can_be_started_again(server: HFServer):
    await server.start()
    os.kill(server.pid, signal.SIGKILL)
    for _ in range(100):
        if not server.is_running():
            break
        await asyncio.sleep(0.02)
    assert not server.is_running()
    with pytest.raises(LLMServerError, match="not running"):
        await server.update_weights("anything", version="1")
    await server.start()
    assert await chat(server)
    await server.stop()


async def test_a_server_that_hangs_is_stopped(taught: Path):
    server = HFServer(taught, threads=1, update_timeout=0.5)
    await server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LLMServerError, match=r"did not reply within 0\.5 s"):
        await server.update_weights(taught, version="1")
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("::1", "http://[::1]:0/v1"),
        ("::", "http://127.0.0.1:0/v1"),
        ("0.0.0.0", "http://127.0.0.1:0/v1"),
        ("models.local", "http://models.local:0/v1"),
    ],
)
def test_clients_can_use_the_url(
    taught: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
):
    server = HFServer(taught, host=host)
    monkeypatch.setattr(server, "is_running", lambda: True)
    assert server.base_url == url


async def test_a_bad_model_is_reported_at_start(tmp_path: Path):
    with pytest.raises(LLMServerError, match=r"config\.json"):
        await HFServer(tmp_path).start()
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(LLMServerError, match="did not start"):
        await HFServer(tmp_path).start()


def test_the_server_ends_when_its_parent_is_killed(taught: Path):
    code = (
        "import asyncio, sys, time\n"
        "from agl_server_hf import HFServer\n"
        "server = HFServer(sys.argv[1], threads=1)\n"
        "asyncio.run(server.start())\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(taught)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert asyncio.run(_wait_until_gone(pid))


async def _wait_until_gone(pid: int) -> bool:
    for _ in range(500):
        if not is_running(pid):
            return True
        await asyncio.sleep(0.02)
    return False
