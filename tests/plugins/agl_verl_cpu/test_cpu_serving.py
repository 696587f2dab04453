"""The server for CPUs: exact log-probabilities, and equal answers with and without a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
async def url(generator: Any) -> AsyncIterator[str]:
    from agl_verl_cpu.serving import build_app

    arguments = PythonServerLauncherArgs(launch_mode="asyncio", healthcheck_url=None)
    server = PythonServerLauncher(build_app(generator, "tiny"), arguments)
    await server.start()
    yield server.access_endpoint
    await server.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "what is 1+1?"}],
    "max_tokens": 20,
    "logprobs": True,
    "return_token_ids": True,
}


class TestGenerator:
    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_logprobs_are_those_of_a_full_forward_pass(self, generator: Any, temperature: float):
        import torch

        prompt = generator.encode([{"role": "user", "content": "hi"}])
        tokens = list(generator.stream(prompt, 24, temperature))
        ids = [token.id for token in tokens]
        with torch.no_grad():
            logits = generator.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        wanted = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(ids)[:, None])
        found = torch.tensor([token.logprob for token in tokens])
        assert (found - wanted[:, 0]).abs().max() < 1e-5
        assert len(ids) == 24 or ids[-1] in generator.stop_ids

    def test_temperature_0_takes_the_likeliest(self, generator: Any):
        prompt = generator.encode([{"role": "user", "content": "hi"}])
        first = [token.id for token in generator.stream(prompt, 8, 0.0)]
        assert [token.id for token in generator.stream(prompt, 8, 0.0)] == first

    def test_new_weights_are_used_by_the_next_answer(self, generator: Any):
        prompt = generator.encode([{"role": "user", "content": "hi"}])
        before = generator.model.state_dict()["lm_head.weight"].clone()
        changed = before.clone()
        changed[5] += 10 * before.abs().max()
        try:
            generator.load({"lm_head.weight": changed})
            with_5 = [token.id for token in generator.stream(prompt, 8, 0.0)]
            generator.load({"lm_head.weight": -changed})
            without_5 = [token.id for token in generator.stream(prompt, 8, 0.0)]
        finally:
            generator.load({"lm_head.weight": before})
        assert with_5 != without_5

    def test_an_unknown_weight_changes_nothing(self, generator: Any):
        with pytest.raises(KeyError, match="no weights \\['head'\\]"):
            generator.load({"head": None})


class TestServer:
    async def test_streamed_is_as_whole(self, url: str, http: aiohttp.ClientSession):
        greedy = {**BODY, "temperature": 0}
        async with http.post(f"{url}/v1/chat/completions", json=greedy) as reply:
            whole = await reply.json()
        streamed = {**greedy, "stream": True, "stream_options": {"include_usage": True}}
        async with http.post(f"{url}/v1/chat/completions", json=streamed) as reply:
            lines = (await reply.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        said = "".join(choice["delta"].get("content", "") for choice in choices)
        assert said == whole["choices"][0]["message"]["content"]
        ids = [token for choice in choices for token in choice.get("token_ids", ())]
        assert ids == whole["choices"][0]["token_ids"]
        assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert chunks[-1]["usage"] == whole["usage"]

    async def test_a_model_and_its_health(self, url: str, http: aiohttp.ClientSession):
        async with http.get(f"{url}/v1/models") as reply:
            assert (await reply.json())["data"][0]["id"] == "tiny"
        async with http.get(f"{url}/health") as reply:
            assert reply.status == 200

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"n": 2}, "one choice per request"),
            ({"messages": [{"role": "user", "content": "x" * 600}]}, "maximum context length"),
        ],
    )
    async def test_what_it_cannot_do_it_refuses(
        self, url: str, http: aiohttp.ClientSession, change: dict[str, Any], problem: str
    ):
        async with http.post(f"{url}/v1/chat/completions", json={**BODY, **change}) as reply:
            assert reply.status == 400
            assert problem in (await reply.json())["error"]["message"]
