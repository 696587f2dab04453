"""Conversations that continue in token space, from SDKs over the proxy to the server and back."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from agl_adapter_trajectory import TraceToTrajectory
from agl_proxy_direct import DirectProxy
from agl_server_hf import HFServer
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_server_hf.families import FAMILIES
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


KINDS = [(tools, returns) for tools in (False, True) for returns in (False, True)]
FULL = [
    (family, protocol, streamed, tools, returns)
    for family in ("qwen3", "llama3", "mistral", "gemma", "deepseek")
    for protocol in AGENTS
    for streamed in (False, True)
    for tools, returns in KINDS
    # The server's ids of tool calls are longer than Mistral's template allows. The agent of chat
    # makes shorter ones.
    if not (family == "mistral" and tools and protocol != "chat")
]
SOME = FULL[::7]
"""Has every family, protocol, form and kind."""


def name_of(case: tuple[str, str, bool, bool, bool]) -> str:
    family, protocol, streamed, tools, returns = case
    words = (
        family,
        protocol,
        "streamed" if streamed else "plain",
        "tools" if tools else "user",
        "returned" if returns else "dropped",
    )
    return "-".join(words)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name_of(case)) for case in SOME]
    + [
        pytest.param(case, id=name_of(case), marks=pytest.mark.slow)
        for case in FULL
        if case not in SOME
    ],
)
async def test_a_conversation_is_one_row(case: tuple[str, str, bool, bool, bool]):
    family, protocol, streamed, tools, returns = case
    async with ForcedServer(family).running() as server, rollout(server) as run:
        agent = AGENTS[protocol](run.url, streamed=streamed, returns=returns, tools=tools)
        sampled = await converse(agent, server)
        await check_one_row(run, sampled, rendered_new(server, tools, TURNS))


async def test_what_a_model_samples_by_itself_is_one_row_too(models: Path):
    """A server in a process of its own; its model has random weights, and says what it likes."""
    async with HFServer(models / "random", threads=1, seed=0, reasoning=True) as server:
        store = InMemoryLightningStore()
        proxy = DirectProxy(store=store, model_list=server.model_list(), history="continue")
        await proxy.start()
        attempt = await store.start_rollout(input={})
        resource = proxy.as_resource(attempt.rollout_id, attempt.attempt.attempt_id)
        history: list[Any] = [{"role": "user", "content": "Hi"}]
        async with openai.AsyncOpenAI(base_url=resource.endpoint, api_key="x") as client:
            for turn in range(8):
                done = await client.chat.completions.create(
                    model=server.model, messages=history, max_tokens=3 + turn
                )
                history += [
                    {"role": "assistant", "content": done.choices[0].message.content},
                    {"role": "user", "content": f"more {turn}"},
                ]
        await proxy.stop()
    (row,) = TraceToTrajectory().adapt((await store.query_spans(attempt.rollout_id)).items)
    assert len(row.responses) == 8 and row.certificate.continued == 7
    model = AutoModelForCausalLM.from_pretrained(models / "random", dtype=torch.float32).eval()
    independent = [0.0, *forward(model, row.token_ids)]
    for used, ours, theirs in zip(row.mask, row.logprobs, independent, strict=True):
        assert not used or abs(ours - theirs) < 1e-5


# -- what the agent gets ---------------------------------------------------------------------------


def without_names(value: Any) -> Any:
    """Return a response without what differs between any two: ids, times, and counted prompts."""
    if isinstance(value, dict):
        kept = {key: without_names(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if key not in ("id", "created", "usage")}
    return [without_names(one) for one in value] if isinstance(value, list) else value


async def post(url: str, body: dict[str, Any]) -> list[Any]:
    """Return the JSON of a response, or of each event of a stream."""
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        assert reply.status == 200, await reply.text()
        raw = await reply.read()
    if not body["stream"]:
        return [json.loads(raw)]
    assert raw.endswith(b"data: [DONE]\n\n")
    lines = [line[6:] for line in raw.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "deepseek"])
async def test_the_agent_gets_what_the_chat_route_makes_of_the_tokens(family: str, streamed: bool):
    hostile = [
        "<think>\nhm <tool_call> no\n</think>\n\nIt is\u00e9\u4e2d \U0001f600 done",
        answer(1, tools=True),
        answer(2, tools=True) + "\n" + answer(3, tools=True).partition("</think>\n\n")[2],
        '<think>a</think><tool_call>\n{"name": broken}\n</tool_call>',
        "<think>never ends",
        "</think>" if family == "deepseek" else "no thought at all",
        "",
    ]
    async with ForcedServer(family).running() as server, rollout(server) as run:
        history: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
        for number, text in enumerate(hostile):
            body = {"model": "q", "messages": history, "stream": streamed, "tools": TOOL}
            heard = []
            for url in (server.url, run.url):
                server.say(text)
                heard.append(without_names(await post(url + "/chat/completions", body)))
            assert heard[0] == heard[1]
            assert server.engine.prompts[-1] != server.engine.prompts[-2] or not number
            said = (await run.spans())[-1].attributes["gen_ai.output.messages"]
            parts = json.loads(said)[0]["parts"]
            texts = [part["content"] for part in parts if part["type"] == "text"]
            calls = [
                {
                    "id": part["id"],
                    "type": "function",
                    "function": {"name": part["name"], "arguments": part["arguments"]},
                }
                for part in parts
                if part["type"] == "tool_call"
            ]
            history.append({"role": "assistant", "content": "".join(texts)})
            if calls:
                history[-1]["tool_calls"] = calls
            history += [
                {"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls
            ]
            if not calls:
                history.append({"role": "user", "content": f"go on {number}"})
        assert await run.states() == [("new",), *[("continued",)] * (len(hostile) - 1)]
        assert len(await run.rows()) == 1


# -- odd histories ---------------------------------------------------------------------------------


async def test_sampled_tokens_that_no_tokenizer_makes_stay_as_they_were():
    odd = random.Random(3)
    async with ForcedServer("qwen3").running() as server, rollout(server) as run:
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        sampled = []
        for turn in range(5):
            sampled.append(server.say(f"What it found for Paris: answer {turn}", odd=odd))
            heard = await agent.ask()
            assert sampled[-1] != server.encode(heard.text)
            agent.tell("more")
        (row,) = await run.rows()
        trained = [token for token, used in zip(row.token_ids, row.mask, strict=True) if used]
        assert trained == [token for ids in sampled for token in ids]


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_answer_that_was_cut_off_gets_its_end_from_the_template(family: str):
    async with ForcedServer(family).running() as server, rollout(server) as run:
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        cut = server.say("<think>a</think>It goes on and", ends=False)
        await agent.ask()
        agent.tell("more")
        server.say("<think>b</think>done")
        await agent.ask()
        (row,) = await run.rows()
        end = server.tokenizer.eos_token_id
        assert row.token_ids[row.responses[0][0] :][: len(cut) + 1] == [*cut, end]
        assert row.mask[row.responses[0][1]] == 0  # the template's end token is not trained


async def ask_twice(run: Rollout, first: str, *, tools: bool = False, **options: Any) -> Agent:
    """Make a call whose answer is ``first``, and one that goes on with it."""
    agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=tools)
    agent.tell("Hi")
    run.server.say(first, **options)
    heard = await agent.ask()
    for call_id, _, _ in heard.calls:
        agent.report(call_id, "result")
    if not heard.calls:
        agent.tell("more")
    run.server.say("done")
    await agent.ask()
    return agent


async def test_another_end_token_falls_back():
    async with ForcedServer("llama3").running() as server, rollout(server) as run:
        other = server.tokenizer.convert_tokens_to_ids("<|eom_id|>")
        server.engine.ends.add(other)
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        server.engine.answers.append([*server.encode("text", ends=False), other])
        await agent.ask()
        agent.tell("more")
        server.say("done")
        await agent.ask()
        assert await run.states() == [("new",), ("exact", "end_token")]


async def test_a_tool_call_without_its_end_falls_back():
    async with ForcedServer("qwen3").running() as server, rollout(server) as run:
        text = answer(1, tools=True).removesuffix("\n</tool_call>")
        await ask_twice(run, text, tools=True, ends=False)
        assert await run.states() == [("new",), ("exact", "unfinished_call")]


async def test_a_template_that_moves_text_falls_back_across_user_turns_only():
    async with ForcedServer("mistral_v3").running() as server, rollout(server) as run:
        agent = await ask_twice(run, answer(1, tools=True), tools=True)
        agent.tell("and now?")
        server.say("done again")
        await agent.ask()
        assert await run.states() == [("new",), ("continued",), ("exact", "rewritten")]
        assert len(await run.rows()) == 2


async def test_parallel_calls_continue_or_are_refused_as_by_the_server():
    both = answer(1, tools=True) + "\n" + answer(2, tools=True).partition("</think>\n\n")[2]
    for family in ("qwen3", "mistral", "gemma", "deepseek"):
        async with ForcedServer(family).running() as server, rollout(server) as run:
            await ask_twice(run, both, tools=True)
            assert await run.states() == [("new",), ("continued",)]
    async with ForcedServer("llama3").running() as server, rollout(server) as run:
        with pytest.raises(openai.BadRequestError, match="single tool-calls"):
            await ask_twice(run, both, tools=True)
        assert await run.states() == [("new",), ("exact", "template")]


async def test_a_prompt_that_is_too_long_with_reasoning_is_rendered_without():
    thought = "<think>" + "a city " * 40 + "</think>\n\n"
    async with (
        ForcedServer("qwen3", max_length=400).running() as server,
        rollout(server) as run,
    ):
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        for turn in range(4):
            server.say(thought + f"answer {turn}")
            await agent.ask(limit=130)
            agent.tell("more")
        states = await run.states()
        assert states[0] == ("new",) and ("exact", "refused") in states
        spans = await run.spans()
        assert all(span.status.status_code == "OK" for span in spans)


async def test_images_fall_back_and_reach_the_server():
    async with ForcedServer("qwen3").running() as server, rollout(server) as run:
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        server.say("yes")
        await agent.ask()
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        agent.history.append({"role": "user", "content": [image]})
        with pytest.raises(openai.BadRequestError, match="text only"):
            await agent.ask()
        assert await run.states() == [("new",), ("exact", "not_text")]


async def test_a_fork_a_retry_and_a_sub_agent_each_continue_their_own_history():
    async with ForcedServer("qwen3").running() as server, rollout(server) as run:
        main = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        main.tell("Hi")
        server.say(answer(0, tools=False))
        await main.ask()
        shared = list(main.history)
        sampled = 0
        for text in ("left", "right", "right"):  # two forks, and one of them again
            main.history = [*shared, {"role": "user", "content": text}]
            sampled += len(server.say(answer(1, tools=False)))
            await main.ask()
        other = AGENTS["chat"](run.url, streamed=True, returns=False, tools=False)
        other.history.append({"role": "system", "content": "You help."})
        other.tell("sub-task")
        for turn in range(2):
            sampled += len(server.say(answer(turn, tools=False)))
            await other.ask()
            other.tell("go on")
        assert await run.states() == [
            ("new",),
            ("continued",),
            ("continued",),
            ("continued",),
            ("new",),
            ("continued",),
        ]
        rows = await run.rows()
        assert len(rows) == 4
        first = len(server.encode(answer(0, tools=False)))
        assert sum(sum(row.mask) for row in rows) == first + sampled
        prompts = server.engine.prompts
        assert prompts[2] == prompts[3] != prompts[1]


async def test_a_summary_starts_a_new_history():
    async with ForcedServer("qwen3").running() as server, rollout(server) as run:
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        for turn in range(2):
            server.say(answer(turn, tools=False))
            await agent.ask()
            agent.tell("more")
        agent.history = [
            {"role": "user", "content": "Summary of before: it was sunny."},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": "more"},
        ]
        for turn in range(2):
            server.say(answer(turn, tools=False))
            await agent.ask()
            agent.tell("more")
        states = await run.states()
        assert states[2:] == [("exact", "unknown_history"), ("continued",)]
        assert len(await run.rows()) == 2


@pytest.mark.parametrize("mode", ["thread", "mp"])
async def test_a_restarted_proxy_continues_from_the_spans(mode: str):
    async with (
        ForcedServer("qwen3").running() as server,
        rollout(server, launch_mode=mode) as run,
    ):
        agent = AGENTS["chat"](run.url, streamed=False, returns=False, tools=False)
        agent.tell("Hi")
        for turn in range(2):
            server.say(answer(turn, tools=False))
            await agent.ask()
            agent.tell("more")
        await run.proxy.flush()
        await run.proxy.stop()
        await run.proxy.start()
        attempt = run.attempt
        agent.url = run.proxy.as_resource(attempt.rollout_id, attempt.attempt.attempt_id).endpoint
        for turn in range(2):
            server.say(answer(turn, tools=False))
            await agent.ask()
            agent.tell("more")
        assert await run.states() == [("new",), *[("continued",)] * 3]
        assert len(await run.rows()) == 1


async def test_exact_is_the_default_and_leaves_no_trace():
    async with ForcedServer("qwen3").running() as server, rollout(server, history="exact") as run:
        await ask_twice(run, answer(0, tools=False))
        assert await run.states() == [(), ()]
        assert len(await run.rows()) == 2
