"""Thirty situations of an agent's model calls: what the agent gets, and what is trained of them.

In each, the agent gets the model's answers, all sampled tokens that it goes on with are in the rows
once, with their log-probabilities, and the context before each is what the model saw. A token's
log-probability is that of no other, so a trained token is traced to its sampling. The page
docs/comparison.md has the same situations for other projects.

The agent that leaves in the middle of a stream is in test_proxy_faults.py
(``test_a_call_ends_with_its_agent``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_proxy_direct import UpstreamError, UpstreamRequest, UpstreamResponse
from agl_store_memory import InMemoryLightningStore

from .asgi_calls import ProxyInMemory
from .word_server import END, Response, Sampled, Template, WordServer

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
LONG = " ".join(f"w{number}" for number in range(10_000))
Message = dict[str, Any]


class FaultyServer(WordServer):
    """A server whose next answers fail in given ways.

    Attributes:
        faults: What happens to the next answers: ``refused``, ``cut`` (a stream breaks half-way),
            ``error chunk``, ``short`` (a body breaks), ``no logprobs``.
    """

    def __init__(self, template: Template) -> None:
        super().__init__(template)
        self.faults: list[str] = []

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            return Response(500, {"error": {"message": "out of memory"}})
        assert isinstance(request.body, dict)
        if request.endpoint == "/completions":
            return self._complete(request.body)
        response = await super().send(request)
        assert isinstance(response, Response)
        pieces = response._pieces
        if fault == "cut":
            response._pieces = [pieces[0], BROKEN]
        elif fault == "error chunk":
            response._pieces = [pieces[0], b'data: {"error": {"message": "lost"}}\n\n']
        elif fault == "short":
            response._pieces = [pieces[0][:40], BROKEN]
        elif fault == "no logprobs":
            answer = json.loads(pieces[0])
            answer["choices"][0]["logprobs"] = None
            response._pieces = [json.dumps(answer).encode()]
        if fault in ("cut", "error chunk", "short"):
            response = Breaking(response)
        return response

    def _complete(self, body: dict[str, Any]) -> UpstreamResponse:
        prompt = self.encode(body["prompt"].split())
        words, finish = self.answers.pop(0)
        call = Sampled(prompt, body, given=False)
        tokens = self.encode(words)
        logprobs = [-1e-6 * next(self._numbers) for _ in tokens]
        call.choices.append((tokens, logprobs))
        self.calls.append(call)
        choice = {"index": 0, "text": " ".join(words[:-1]), "finish_reason": finish}
        choice |= {"token_ids": tokens, "prompt_token_ids": prompt}
        choice["logprobs"] = {"tokens": words, "token_logprobs": logprobs}
        return Response(200, {"id": "a", "model": "q", "choices": [choice]})


BROKEN = b"<broken>"


class Breaking(Response):
    """A response whose connection breaks."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status, {})
        self.streamed, self._pieces = response.streamed, response._pieces

    async def chunks(self) -> AsyncGenerator[bytes]:
        for piece in self._pieces:
            if piece == BROKEN:
                raise UpstreamError(502, "the connection broke", "connection_broken")
            yield piece

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])


class Agent:
    """An agent of one attempt."""

    def __init__(self, server: FaultyServer, proxy: ProxyInMemory, attempt: Any) -> None:
        self.server, self.proxy, self.attempt = server, proxy, attempt

    async def ask(
        self, messages: list[Message], *answers: str, status: int = 200, **options: Any
    ) -> Message:
        """Return the message that the agent goes on with, by default that of the only choice.

        Args:
            messages: The conversation.
            answers: The words of each choice, which end with a token of their own.
            status: The HTTP status of the reply.
            options: Fields of the request; ``used`` is the number of the choice.
        """
        finish = options.pop("finish", "stop")
        used = options.pop("used", 0)
        end = [END] if finish == "stop" else []
        # A no-break space is a part of a token here; the template splits there.
        self.server.answers = [([*filter(None, one.split(" ")), *end], finish) for one in answers]
        body = {"model": "q", "messages": messages, **options}
        got, response = await self.proxy.chat(self.attempt, body)
        assert got == status, response
        if status != 200:
            return {}
        message = response["choices"][used]["message"]
        return {key: value for key, value in message.items() if value is not None}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def results(message: Message) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": "it rains"}
        for call in message["tool_calls"]
    ]


CALL = '<call> look {"city": "Rome"} </call>'
THINK = "<think> hm hm </think>"


async def turns(agent: Agent, *answers: str, keep: bool = True, **options: Any) -> None:
    """A conversation with the user; the agent sends reasoning back or drops it."""
    history = [user("begin")]
    for number, answer in enumerate(answers):
        message = await agent.ask(history, answer, **options)
        if not keep:
            message.pop("reasoning_content", None)
        history += [message, user(f"more {number}")]


async def loop(agent: Agent, *answers: str, keep: bool = True, **options: Any) -> None:
    """A tool loop, whose last answer calls no tool."""
    history = [user("begin")]
    for answer in answers:
        message = await agent.ask(history, answer, tools=TOOLS, **options)
        assert bool(message.get("tool_calls")) == (CALL in answer)
        if not keep:
            message.pop("reasoning_content", None)
        if message.get("tool_calls"):
            history += [message, *results(message)]


async def second_of_two(agent: Agent) -> None:
    history = [user("begin")]
    message = await agent.ask(history, "one two", "three four", n=2, used=1)
    assert message["content"] == "three four"
    await agent.ask([*history, message, user("more")], "five six")


async def repeated_after(agent: Agent, fault: str, **options: Any) -> None:
    history = [user("begin")]
    agent.server.faults = [fault]
    # A stream has begun with status 200; what it has sent before it breaks is discarded.
    await agent.ask(history, "one two", status=FAULT_STATUS.get(fault, 200), **options)
    message = await agent.ask(history, "one two", **options)
    await agent.ask([*history, message, user("more")], "three four", **options)


FAULT_STATUS = {"refused": 500, "short": 502}


async def same_prompt_twice(agent: Agent) -> None:
    history = [user("begin")]
    await agent.ask(history, "one two")
    message = await agent.ask(history, "three four")
    await agent.ask([*history, message, user("more")], "five six")


async def fork(agent: Agent) -> None:
    history = [user("begin")]
    first = await agent.ask(history, "one two")
    for way in ("left", "right"):
        history = [user("begin"), first, user(way)]
        message = await agent.ask(history, f"{way} one")
        if way == "left":
            await agent.ask([*history, message, user("on")], "two")


async def compaction(agent: Agent) -> None:
    history = [user("begin")]
    for answer in ("one two", "three four"):
        history += [await agent.ask(history, answer), user("more")]
    summary = await agent.ask([*history[:-1], user("sum up")], "all is well")
    history = [user(f"so far: {summary['content']}")]
    history += [await agent.ask(history, "five six"), user("more")]
    await agent.ask(history, "seven eight")


async def title(agent: Agent) -> None:
    history = [user("begin")]
    message = await agent.ask(history, "one two")
    prompt = "Generate a title for this conversation."
    await agent.ask([system(prompt), user("begin")], "A Title")
    await agent.ask([*history, message, user("more")], "three four")


async def sub_agent(agent: Agent) -> None:
    both = [[system(name), user("begin")] for name in ("main", "helper")]
    for number in range(10):
        for name, history in zip(("main", "helper"), both, strict=True):
            message = await agent.ask(history, f"{name} says {number}")
            history += [message, user(f"go on {number}")]


async def late_system(agent: Agent) -> None:
    history = [system("be brief"), user("begin")]
    message = await agent.ask(history, "one two")
    await agent.ask([*history, message, system("hurry"), user("more")], "three four")


async def no_token(agent: Agent) -> None:
    history = [user("begin")]
    await agent.ask(history, "", finish="length")
    await agent.ask([user("begin again")], "one two")


async def null_logprobs(agent: Agent) -> None:
    agent.server.faults = ["no logprobs"]
    await turns(agent, "one two", "three four")


async def long_result(agent: Agent) -> None:
    history = [user("begin")]
    message = await agent.ask(history, CALL, tools=TOOLS)
    (result,) = results(message)
    await agent.ask([*history, message, {**result, "content": LONG}], "done", tools=TOOLS)


async def completions(agent: Agent) -> None:
    for prompt, words in (("once upon", "a time"), ("the end", "is near")):
        agent.server.answers = [([*words.split(), END], "stop")]
        status, answer = await agent.proxy.chat(
            agent.attempt, {"model": "q", "prompt": prompt}, "completions"
        )
        assert (status, answer["choices"][0]["text"]) == (200, words)


async def responses(agent: Agent, *, stream: bool) -> None:
    items: list[Any] = [user("begin")]
    for words in ("one two", "three four"):
        agent.server.answers = [([*words.split(), END], "stop")]
        body = {"model": "q", "input": items, "stream": stream}
        _, answer = await agent.proxy.chat(agent.attempt, body, "responses")
        assert answer["output"][0]["content"][0]["text"] == words
        items += [*answer["output"], user("more")]


async def messages(agent: Agent, *, stream: bool) -> None:
    history: list[Any] = [user("begin")]
    for words in ("one two", "three four"):
        agent.server.answers = [([*words.split(), END], "stop")]
        body = {"model": "q", "max_tokens": 9, "messages": history, "stream": stream}
        _, answer = await agent.proxy.chat(agent.attempt, body, "messages")
        assert answer["content"][0]["text"] == words
        history += [{"role": "assistant", "content": answer["content"]}, user("more")]


Situation = Callable[[Agent], Awaitable[None]]
T, S = "one two three", True
SITUATIONS: dict[str, tuple[Situation, int, int]] = {
    # name: what the agent does, the rows, and the tokens to train
    "1 three turns": (lambda a: turns(a, T, T, T), 1, 12),
    "2 streamed": (lambda a: turns(a, T, T, T, stream=S), 1, 12),
    "3 tool call": (lambda a: loop(a, CALL, "done"), 1, 8),
    "4 tool call, streamed": (lambda a: loop(a, CALL, "done", stream=S), 1, 8),
    "5 parallel tool calls": (lambda a: loop(a, f"{CALL} {CALL}", "done"), 1, 13),
    "6 tool loop, reasoning dropped": (
        lambda a: loop(a, f"{THINK} {CALL}", f"{THINK} {CALL}", f"{THINK} done", keep=False), 3, 26,
    ),
    "7 tool loop, reasoning returned": (
        lambda a: loop(a, f"{THINK} {CALL}", f"{THINK} {CALL}", f"{THINK} done"), 1, 26,
    ),
    "8 the second of two choices": (second_of_two, 1, 6),
    "9 an error, repeated": (lambda a: repeated_after(a, "refused"), 1, 6),
    "10 a stream breaks, repeated": (lambda a: repeated_after(a, "cut", stream=S), 1, 6),
    "10 an error chunk, repeated": (lambda a: repeated_after(a, "error chunk", stream=S), 1, 6),
    "11 a body breaks, repeated": (lambda a: repeated_after(a, "short"), 1, 6),
    "12 user turns, reasoning dropped": (
        lambda a: turns(a, f"{THINK} one", f"{THINK} two", f"{THINK} three", keep=False), 3, 18,
    ),
    "13 the same prompt twice": (same_prompt_twice, 2, 9),
    "14 a forked history": (fork, 2, 11),
    "15 compaction": (compaction, 2, 16),
    "16 a title in between": (title, 1, 6),
    "17 main and sub-agent in turns": (sub_agent, 2, 80),
    "18 a late system message": (late_system, 1, 6),
    "19 the end token alone": (lambda a: turns(a, "", "one"), 1, 3),
    "20 no token": (no_token, 1, 3),
    "21 stopped by length": (lambda a: turns(a, T, T, finish="length"), 1, 6),
    "22 no log-probabilities on turn 1": (null_logprobs, 1, 6),
    "24 a long result": (long_result, 1, 8),
    "25 ids that are not canonical": (lambda a: turns(a, "a\u00a0b c", "d\u00a0e f", "g"), 3, 8),
    "26 the same in a tool loop": (
        lambda a: loop(a, f"a\u00a0b {CALL}", f"c\u00a0d {CALL}", "e"), 3, 16,
    ),
    "27 completions": (completions, 2, 6),
    "28 responses": (lambda a: responses(a, stream=False), 1, 6),
    "28 responses, streamed": (lambda a: responses(a, stream=S), 1, 6),
    "29 messages": (lambda a: messages(a, stream=False), 1, 6),
    "29 messages, streamed": (lambda a: messages(a, stream=S), 1, 6),
}  # fmt: skip


def trained_in(server: FaultyServer, rows: list[Any], *, logprobs: bool = True) -> int:
    """Hold rows to what the server sampled; return the number of tokens to train."""
    sampled = {
        logprob: (call.prompt + tokens[:at], tokens[at])
        for call in server.calls
        for tokens, given in call.choices
        for at, logprob in enumerate(given)
    }
    seen: set[float] = set()
    for row in rows:
        assert row.certificate.ids_present
        for at, used in enumerate(row.mask):
            logprob = row.logprobs[at]
            if not used or not row.certificate.logprobs_present:
                continue
            assert (row.token_ids[:at], row.token_ids[at]) == sampled[logprob]
            assert logprob not in seen
            seen.add(logprob)
    assert all(row.certificate.logprobs_present for row in rows) == logprobs
    return sum(sum(row.mask) for row in rows)


async def run(situation: Situation, template: Template) -> tuple[FaultyServer, list[Any]]:
    """Return the server and the rows of one rollout."""
    server, store = FaultyServer(template), InMemoryLightningStore()
    async with ProxyInMemory(store, server, history="exact", num_retries=0) as proxy:
        attempt = await store.start_rollout(input={})
        await situation(Agent(server, proxy, attempt))
    spans = list((await store.query_spans(attempt.rollout_id)).items)
    return server, TraceToTrajectory().adapt(spans)


@pytest.mark.parametrize("name", SITUATIONS)
async def test_situation(name: str):
    situation, rows, tokens = SITUATIONS[name]
    server, made = await run(situation, Template(strips=name.startswith("12")))
    trained = trained_in(server, made, logprobs=not name.startswith("22"))
    assert (len(made), trained) == (rows, tokens)


async def test_sixteen_rollouts_at_once():
    """The 30th: nothing is lost, and nothing is in another rollout."""
    server, store = FaultyServer(Template()), InMemoryLightningStore()
    server.answers = [([f"w{number}", "x", END], "stop") for number in range(128)]
    async with ProxyInMemory(store, server, history="exact") as proxy:
        attempts = [await store.start_rollout(input={}) for _ in range(16)]

        async def one(attempt: Any) -> None:
            history = [user(attempt.rollout_id)]
            for number in range(8):
                body = {"model": "q", "messages": history, "stream": number % 2 == 0}
                _, response = await proxy.chat(attempt, body)
                history += [response["choices"][0]["message"], user("more")]

        await asyncio.gather(*map(one, attempts))
    every: list[Any] = []
    for attempt in attempts:
        spans = list((await store.query_spans(attempt.rollout_id)).items)
        (row,) = TraceToTrajectory().adapt(spans)
        assert row.token_ids[1] == server.encode([attempt.rollout_id])[0]
        every.append(row)
    assert trained_in(server, every) == 128 * 3
