"""Conversations that continue in token space, from SDKs over the proxy to the server and back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_core.store import InMemoryLightningStore
from agl_proxy_direct import DirectProxy
from tests.plugins.agl_server_hf.forced import ForcedServer, forward
from tests.plugins.agl_server_hf.sdk_agents import AGENTS, Agent

TURNS = 20
TOOL = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


class Rollout:
    """One attempt against a forced server, through a proxy."""

    def __init__(self, server: ForcedServer, proxy: DirectProxy, store: Any, attempt: Any) -> None:
        self.server, self.proxy, self.store, self.attempt = server, proxy, store, attempt
        self.url = proxy.as_resource(attempt.rollout_id, attempt.attempt.attempt_id).endpoint

    async def spans(self) -> list[Any]:
        await self.proxy.flush()
        return list((await self.store.query_spans(self.attempt.rollout_id)).items)

    async def rows(self) -> list[Any]:
        return TraceToTrajectory().adapt(await self.spans())

    async def states(self) -> list[Any]:
        spans = await self.spans()
        keys = ("agl.proxy.history", "agl.proxy.history.reason")
        return [tuple(s.attributes[k] for k in keys if k in s.attributes) for s in spans]


@asynccontextmanager
async def rollout(server: ForcedServer, **options: Any) -> AsyncIterator[Rollout]:
    store = InMemoryLightningStore()
    options = {"history": "continue", "model_list": server.model_list, **options}
    proxy = DirectProxy(store=store, **options)
    await proxy.start()
    try:
        yield Rollout(server, proxy, store, await store.start_rollout(input={}))
    finally:
        await proxy.stop()


def answer(turn: int, tools: bool) -> str:
    """Return the text of an answer: of 100 sampled tokens some 60 are reasoning."""
    thought = "<think>\nThe agent asks for the weather of a city and for the time.\n</think>\n\n"
    if not tools:
        return thought + f"What it found: answer {turn}"
    call = {"name": "look", "arguments": {"city": f"Paris {turn}", "day": 1}}
    return thought + f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


async def converse(agent: Agent, server: ForcedServer, turns: int = TURNS) -> list[list[int]]:
    """Let an agent take some turns; return the tokens of each answer."""
    sampled: list[list[int]] = []
    agent.tell("Look for the weather.")
    for turn in range(turns):
        sampled.append(server.say(answer(turn, agent.tools)))
        heard = await agent.ask()
        assert "weather of a city" in heard.reasoning and "think>" not in heard.text
        if agent.tools:
            ((call_id, name, arguments),) = heard.calls
            assert (name, arguments) == ("look", {"city": f"Paris {turn}", "day": 1})
            agent.report(call_id, f"result {turn}")
        else:
            assert heard.text.strip() == f"What it found: answer {turn}"
            agent.tell(f"And question {turn}?")
    return sampled


def rendered_new(server: ForcedServer, tools: bool, turns: int) -> int:
    """Return how many tokens the template renders of the messages after each answer.

    In the text that the template makes, they are what follows the end token of the last answer.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look for the weather."}]
    end, total = server.family.end, 0
    for turn in range(turns - 1):
        mark = f"mark{turn}x"
        said: dict[str, Any] = {"role": "assistant", "content": mark}
        new: dict[str, Any] = {"role": "user", "content": f"And question {turn}?"}
        if tools:
            name = f"{turn:09d}"
            call = {"name": "look", "arguments": {"city": mark}}
            said["tool_calls"] = [{"id": name, "type": "function", "function": call}]
            new = {"role": "tool", "tool_call_id": name, "content": f"result {turn}"}
        messages += [said, new]
        text = server.tokenizer.apply_chat_template(
            messages, tools=TOOL if tools else None, tokenize=False, add_generation_prompt=True
        )
        after = text[text.rindex(mark) :].partition(end)[2]
        total += len(server.tokenizer.encode(after, add_special_tokens=False))
    return total


async def check_one_row(run: Rollout, sampled: list[list[int]], new: int) -> None:
    (row,) = await run.rows()
    trained = [token for token, used in zip(row.token_ids, row.mask, strict=True) if used]
    assert trained == [token for ids in sampled for token in ids]
    assert len(row.token_ids) <= 1.05 * (row.prompt_length + len(trained) + new)
    independent = [0.0, *forward(run.server.model, row.token_ids)]
    for used, ours, theirs in zip(row.mask, row.logprobs, independent, strict=True):
        assert not used or abs(ours - theirs) < 1e-5
    assert await run.states() == [("new",), *[("continued",)] * (len(sampled) - 1)]


KINDS = [
    pytest.param(tools, returns, id=f"{'tools' if tools else 'user'}-{word}")
    for tools in (False, True)
    for returns, word in ((False, "dropped"), (True, "returned"))
]


@pytest.mark.parametrize(("tools", "returns"), KINDS)
@pytest.mark.parametrize("protocol", AGENTS)
@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "gemma", "deepseek"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_is_one_row(
    family: str, protocol: str, streamed: bool, tools: bool, returns: bool
):
    if protocol != "chat" and family == "mistral" and tools:
        pytest.skip("the server's ids of tool calls are longer than Mistral's template allows")
    async with ForcedServer(family).running() as server, rollout(server) as run:
        agent = AGENTS[protocol](run.url, streamed=streamed, returns=returns, tools=tools)
        sampled = await converse(agent, server)
        await check_one_row(run, sampled, rendered_new(server, tools, TURNS))
