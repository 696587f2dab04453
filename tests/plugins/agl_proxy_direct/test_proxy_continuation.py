"""Conversations in token space: what continues, what falls back, and what is never wrong."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_core import semconv
from agl_core.types import Span
from agl_proxy_direct import parse_model_list
from agl_proxy_direct.history import AttemptHistory, Fallback, Histories, conversation_keys
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_proxy_direct.asgi_calls import ENTRY, ProxyInMemory
from tests.plugins.agl_proxy_direct.word_server import (
    END,
    OTHER_END,
    Response,
    Sampled,
    Template,
    WordServer,
)

HISTORY, REASON = "agl.proxy.history", "agl.proxy.history.reason"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
WORDS = ["sun", "rain", "wind", "snow", "city", "road", "tree", "bird"]
TEMPLATES = [
    Template(),
    Template(strips=True),
    Template(strips=True, opens=True),
    Template(moves=True),
    Template(single=True),
    Template(marks=True),
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


class Conversations:
    """An agent of one attempt that does odd things to its histories."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = WordServer(self.random.choice(TEMPLATES))
        self.store = InMemoryLightningStore()
        self.proxy = ProxyInMemory(self.store, self.server)
        self.attempt: Any = None
        self.history: list[dict[str, Any]] = [{"role": "user", "content": self.words()}]
        self.others: list[list[dict[str, Any]]] = []
        self.tools: list[dict[str, Any]] | None = self.random.choice([None, TOOLS])

    def words(self, most: int = 4) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def answer(self) -> tuple[list[str], str]:
        """Return the words of an answer, and why it ends."""
        words: list[str] = []
        if self.chance(0.7):
            opened = self.server.template.opens
            words = [*["<think>"][: not opened], *self.words(9).split(), "</think>"]
        if self.chance(0.8):
            words += self.words().split()
        if self.tools and self.chance(0.5):
            for number in range(self.random.choice([1, 1, 1, 2])):
                arguments = {"b": number, "a": [self.words(), {"y": 1.5, "x": 2.0}]}
                words += ["<call>", "look", *json.dumps(arguments).split(), "</call>"]
        if self.chance(0.12):
            return words[: self.random.randint(1, len(words) or 1)] or ["sun"], "length"
        return [*words, OTHER_END if self.chance(0.05) else END], "stop"

    def sent_back(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as an agent sends it back."""
        message = {key: value for key, value in message.items() if value is not None}
        thought = message.pop("reasoning_content", None)
        how = self.random.choice(["drop", "drop", "return", "inline"])
        if thought and how == "return":
            message["reasoning_content"] = thought
        if thought and how == "inline":
            message["content"] = f"<think>{thought}</think>\n\n{message.get('content') or ''}"
        if self.chance(0.3):
            message["content"] = [{"type": "text", "text": message.get("content") or ""}]
        for call in message.get("tool_calls") or ():
            call["id"] = f"c{self.random.randint(0, 999)}"
            arguments = json.loads(call["function"]["arguments"])
            again = json.dumps(dict(reversed(arguments.items())), separators=(",", " : "))
            call["function"] = {"arguments": again.replace("2.0", "2"), "name": "look"}
        return message

    async def act(self) -> None:
        """Change the histories in one odd way, or in none."""
        history, pick = self.history, self.random.randrange(24)
        if pick == 0 and len(history) > 2:  # edit an answer
            at = self.random.randrange(len(history))
            if history[at]["role"] == "assistant":
                history[at] = {"role": "assistant", "content": self.words()}
        elif pick == 1 and len(history) > 3:  # leave something out
            del history[self.random.randrange(1, len(history) - 1)]
        elif pick in (2, 3):  # go back, and on from there
            users = [index for index, one in enumerate(history) if one["role"] == "user"]
            self.history = [*history[: self.random.choice(users or [0])]]
            self.history.append({"role": "user", "content": self.words()})
        elif pick == 4:  # a summary
            self.history = [{"role": "user", "content": "summary " + self.words()}]
        elif pick in (5, 6):  # a sub-agent, or back to another
            self.others.append(history)
            self.history = self.others.pop(0)
            if self.chance(0.6):
                self.others.append(self.history)
                self.history = [
                    {"role": "system", "content": self.words()},
                    {"role": "user", "content": self.words()},
                ]
        elif pick == 7:
            self.tools = self.random.choice([None, TOOLS, TOOLS * 2])
        elif pick == 8 and self.chance(0.5):
            history.append({"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]})
        elif pick == 9:
            history.append({"role": "assistant", "content": self.words()})
        elif pick == 10:  # a restart
            await self.proxy.__aexit__()
            self.proxy = await ProxyInMemory(self.store, self.server).__aenter__()
        elif pick == 11:
            self.server.max_prompt = self.random.choice([30, 10**9])

    async def call(self) -> None:
        choices = 2 if self.chance(0.06) else 1
        body: dict[str, Any] = {"model": "q", "messages": self.history, "max_tokens": 99}
        body["stream"] = self.chance(0.5)
        if self.tools:
            body["tools"] = self.tools
        if choices > 1:
            body["n"] = choices
        self.server.answers = [self.answer() for _ in range(choices)]
        status, response = await self.proxy.chat(self.attempt, body)
        if status != 200:  # an agent whose messages are refused starts again
            self.history = [{"role": "user", "content": self.words()}]
            return
        if self.chance(0.08):
            return  # asks the same again
        message = self.random.choice(response["choices"])["message"]
        try:
            self.history.append(self.sent_back(message))
        except ValueError:  # arguments that are not JSON
            self.history.append({"role": "user", "content": "again"})
            return
        for call in self.history[-1].get("tool_calls") or ():
            result = {"role": "tool", "tool_call_id": call["id"], "content": self.words()}
            self.history.append(result)
        if self.history[-1]["role"] != "tool" or self.chance(0.1):
            self.history.append({"role": "user", "content": self.words()})

    async def run(self, calls: int) -> tuple[list[Any], list[Any]]:
        """Return the spans and the rows."""
        self.attempt = await self.store.start_rollout(input={})
        await self.proxy.__aenter__()
        for _ in range(calls):
            await self.act()
            await self.call()
        await self.proxy.__aexit__()
        spans = list((await self.store.query_spans(self.attempt.rollout_id)).items)
        return spans, TraceToTrajectory().adapt(spans)


def check(server: WordServer, spans: list[Any], rows: list[Any]) -> None:
    """Hold rows and spans of an attempt to what the server saw and sampled."""
    where: dict[float, tuple[Sampled, int, int]] = {}
    for call in server.calls:
        for choice, (tokens, logprobs) in enumerate(call.choices):
            for position, logprob in enumerate(logprobs):
                assert len(tokens) == len(logprobs)
                where[logprob] = (call, choice, position)
    trained: set[float] = set()
    for row in rows:
        for at, (token, used, logprob) in enumerate(
            zip(row.token_ids, row.mask, row.logprobs, strict=True)
        ):
            if not used:
                continue
            call, choice, position = where[logprob]  # it was sampled
            assert logprob not in trained  # once
            trained.add(logprob)
            tokens = call.choices[choice][0]
            assert token == tokens[position]
            assert row.token_ids[:at] == call.prompt + tokens[:position]  # after what it saw
    seen = {json.dumps([call.prompt, call.choices[0][0]]): call for call in server.calls}
    for span in spans:
        attributes = span.attributes
        state, reason = attributes[HISTORY], attributes.get(REASON)
        assert (state == "exact") == (reason is not None)
        assert reason is None or reason in set(Fallback)
        if span.status.status_code == "ERROR":
            continue
        prompt = list(attributes["prompt_token_ids"])
        call = seen[json.dumps([prompt, list(attributes["response_token_ids"])])]
        assert call.given == (state == "continued")
        rendered = server.encode(server.template.render(call.body, head=True))
        if not call.given:
            assert prompt == rendered
            continue
        known = [
            [*other.prompt, *tokens]
            for other in server.calls
            for tokens, _ in other.choices
            if prompt[: len(other.prompt) + len(tokens)] == [*other.prompt, *tokens]
        ]
        # Earlier tokens, and then what the template renders of all messages after an answer.
        rests = [prompt[len(one) :] for one in known]
        assert any(bridges(server, call.body["messages"], rest, rendered) for rest in rests)


def bridges(server: WordServer, messages: list[Any], rest: list[int], rendered: list[int]) -> bool:
    """Return whether tokens are what the template renders after an answer and its end."""
    end, heads = server.encode([END])[0], [f"<{role}>" for role in ("system", "user", "tool")]
    after = sum(token in server.encode([*heads, "<assistant>"]) for token in rest) - 1
    whole = rest if rest[0] == end else [end, *rest]
    before = messages[-after - 1]
    return rendered[-len(whole) :] == whole and after > 0 and before["role"] == "assistant"


async def hold(seeds: Iterable[int]) -> dict[str, int]:
    """Check the conversations of some seeds; return how often each state and reason occurred."""
    counts: dict[str, int] = {}
    for seed in seeds:
        made = Conversations(seed)
        spans, rows = await made.run(random.Random(seed).randint(2, 9))
        try:
            check(made.server, spans, rows)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        for span in spans:
            name = span.attributes.get(REASON) or span.attributes[HISTORY]
            counts[name] = counts.get(name, 0) + 1
    return counts


async def test_no_odd_history_trains_what_was_not_sampled_or_twice():
    counts = await hold(range(300))
    # Answers sampled again, with other reasoning, before a restart of the proxy.
    await hold([1816, 4024, 5064, 7923])
    expected = {"new", "continued", "unknown_history", "not_text", "prefill", "template"}
    expected |= {"rewritten", "bridge", "end_token", "unfinished_call", "refused"}
    assert expected <= counts.keys()
    assert counts["continued"] > sum(counts.values()) / 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
async def test_ten_thousand_odd_histories(part: int):
    print(await hold(range(1000 * part, 1000 * part + 1000)))


# -- one thing at a time ---------------------------------------------------------------------------


async def turns(server: WordServer, store: Any, count: int = 3, **body: Any) -> list[Any]:
    """Make the calls of a plain conversation through one proxy; return what the spans say."""
    attempt = await store.start_rollout(input={})
    history: list[dict[str, Any]] = [{"role": "user", "content": "sun"}]
    async with ProxyInMemory(store, server) as proxy:
        for _ in range(count):
            server.answers = [(["rain", END], "stop")]
            request = {"model": "q", "messages": history, **body}
            status, response = await proxy.chat(attempt, request)
            assert status == 200
            said = response["choices"][0]["message"]
            history = [*history, said, {"role": "user", "content": "wind"}]
    spans = (await store.query_spans(attempt.rollout_id)).items
    return [span.attributes.get(REASON) or span.attributes[HISTORY] for span in spans]


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


async def test_a_backend_that_does_not_render_for_others_is_asked_once(store: Any, caplog: Any):
    server = WordServer(Template(), renders=False)
    asked: list[str] = []
    send = server.send

    async def count(request: Any) -> Any:
        asked.append(request.endpoint)
        return await send(request)

    server.send = count  # type: ignore[method-assign]
    assert await turns(server, store) == ["new", "backend", "backend"]
    assert asked.count("/tokenize") == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "the backend http://127.0.0.1:1/v1 answers 404 to POST /tokenize, so calls of its model q "
        "do not continue their history for 60 s"
    )


class Talk:
    """A conversation with a server that says "rain"."""

    def __init__(self, proxy: ProxyInMemory, server: WordServer, store: Any) -> None:
        self.proxy, self.server, self.store = proxy, server, store
        self.attempt: Any = None
        self.history: list[dict[str, Any]] = [{"role": "user", "content": "sun"}]

    async def turn(self, model: str = "q") -> Any:
        """Make a call; return what its span says of its prompt."""
        self.attempt = self.attempt or await self.store.start_rollout(input={})
        self.server.answers = [(["rain", END], "stop")]
        request = {"model": model, "messages": self.history}
        status, response = await self.proxy.chat(self.attempt, request)
        assert status == 200
        said = response["choices"][0]["message"]
        self.history = [*self.history, said, {"role": "user", "content": "wind"}]
        last = (await self.store.query_spans(self.attempt.rollout_id)).items[-1]
        return last.attributes.get(REASON) or last.attributes[HISTORY]


@pytest.mark.parametrize("how", ["time", "update"])
async def test_a_backend_that_was_not_ready_is_asked_again(store: Any, how: str, monkeypatch: Any):
    server = WordServer(Template(), renders=False)
    async with ProxyInMemory(store, server) as proxy:
        talk = Talk(proxy, server, store)
        assert [await talk.turn() for _ in range(2)] == ["new", "backend"]
        server.renders = True
        assert await talk.turn() == "backend"
        if how == "time":
            clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 61)
            monkeypatch.setattr("agl_proxy_direct.continuation.time", clock)
        else:
            proxy.app.update(parse_model_list([ENTRY]))
        assert await talk.turn() == "continued"


async def test_a_model_that_is_not_loaded_turns_off_no_other_of_its_server(store: Any):
    server = WordServer(Template())
    send, adapter = server.send, {"model_name": "a", "litellm_params": {**ENTRY["litellm_params"]}}
    adapter["litellm_params"]["model"] = "hosted_vllm/adapter"

    async def not_loaded(request: Any) -> Any:
        if request.endpoint == "/tokenize" and request.body["model"] == "adapter":
            return Response(404, {"detail": "no such model"})
        return await send(request)

    server.send = not_loaded  # type: ignore[method-assign]
    async with ProxyInMemory(store, server) as proxy:
        proxy.app.update(parse_model_list([ENTRY, adapter]))
        one, other = Talk(proxy, server, store), Talk(proxy, server, store)
        assert [await one.turn("a") for _ in range(2)] == ["new", "backend"]
        assert [await other.turn("q") for _ in range(2)] == ["new", "continued"]


async def test_an_answer_without_ids_does_not_turn_continuation_off(store: Any):
    server = WordServer(Template())
    send, bare = server.send, [False, True, False, False]

    async def sometimes_bare(request: Any) -> Any:
        response = await send(request)
        if request.endpoint == "/chat/completions" and bare.pop(0):
            body = json.loads(await response.read())
            del body["prompt_token_ids"]
            return Response(200, body)
        return response

    server.send = sometimes_bare  # type: ignore[method-assign]
    async with ProxyInMemory(store, server) as proxy:
        talk = Talk(proxy, server, store)
        found = [await talk.turn() for _ in range(4)]
    assert found == ["new", "ignored", "continued", "continued"]


@pytest.mark.parametrize("name", ["parent", "answers"])
@pytest.mark.parametrize("value", ["not hex", 7, ["also", "not hex"]])
async def test_a_span_of_the_agents_own_breaks_no_history(store: Any, name: str, value: Any):
    server = WordServer(Template())
    async with ProxyInMemory(store, server) as proxy:
        talk = Talk(proxy, server, store)
        assert await talk.turn() == "new"
    own = Span.from_attributes(
        attributes={f"{HISTORY}.{name}": value},
        rollout_id=talk.attempt.rollout_id,
        attempt_id=talk.attempt.attempt.attempt_id,
        sequence_id=0,
        name=semconv.SPAN_MODEL_CALL,
    )
    await store.add_span(own)
    async with ProxyInMemory(store, server) as talk.proxy:  # after a restart
        assert await talk.turn() == "continued"


async def test_a_backend_that_ignores_the_tokens_is_found_out_by_its_answer(store: Any):
    server = WordServer(Template(strips=True), takes_ids=False)
    server_says = await turns(server, store)
    assert server_says == ["new", "continued", "continued"]  # both prompts are the same here
    server.template = Template(strips=True, opens=True)
    history = [{"role": "user", "content": "sun"}]
    attempt = await store.start_rollout(input={})
    async with ProxyInMemory(store, server) as proxy:
        for _ in range(3):
            server.answers = [(["cloud", "</think>", "rain", END], "stop")]
            _, response = await proxy.chat(attempt, {"model": "q", "messages": history})
            said = {"role": "assistant", "content": response["choices"][0]["message"]["content"]}
            history = [*history, said, {"role": "user", "content": "wind"}]
    spans = (await store.query_spans(attempt.rollout_id)).items
    found = [span.attributes.get(REASON) or span.attributes[HISTORY] for span in spans]
    assert found == ["new", "ignored", "backend"]
    for span, call in zip(spans, server.calls[-3:], strict=True):
        assert list(span.attributes["prompt_token_ids"]) == call.prompt


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "text",
        [None],
        [{"role": "assistant", "tool_calls": [{}]}, {"role": "user", "content": "a"}],
        [{"role": "assistant", "content": [1]}, {"role": "user", "content": {"a": 1}}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": json.loads("[" * 150 + "]" * 150)}],
            }
        ],
    ],
)
async def test_what_is_not_a_request_of_chat_goes_to_the_server_as_it_is(store: Any, messages: Any):
    server = WordServer(Template())
    bodies: list[Any] = []

    async def refuse(request: Any) -> Any:
        bodies.append(request.body["messages"])
        return Response(400, {"error": {"message": "no"}})

    server.send = refuse  # type: ignore[method-assign]
    attempt = await store.start_rollout(input={})
    async with ProxyInMemory(store, server) as proxy:
        status, _ = await proxy.chat(attempt, {"model": "q", "messages": messages})
    assert status == 400 and bodies[0] == messages


async def test_a_request_with_tokens_of_its_own_is_left_alone(store: Any):
    server = WordServer(Template())
    ids = server.encode(["<user>", "sun", END, "<assistant>"])
    own = {"prompt_token_ids": ids}
    assert await turns(server, store, kv_transfer_params=own) == [
        "new",
        "own_prompt",
        "own_prompt",
    ]
    assert [call.prompt for call in server.calls] == [ids] * 3


async def test_a_store_that_cannot_be_read_is_named(store: Any, monkeypatch: Any, caplog: Any):
    server = WordServer(Template())
    attempt = await store.start_rollout(input={})
    history = [
        {"role": "user", "content": "sun"},
        {"role": "assistant", "content": "elsewhere"},
        {"role": "user", "content": "wind"},
    ]

    async def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is gone")

    async with ProxyInMemory(store, server) as proxy:
        with monkeypatch.context() as patch:
            patch.setattr(store, "query_spans", fail)
            server.answers = [(["rain", END], "stop")]
            await proxy.chat(attempt, {"model": "q", "messages": history})
        server.answers = [(["rain", END], "stop")]
        await proxy.chat(attempt, {"model": "q", "messages": history})
    spans = (await store.query_spans(attempt.rollout_id)).items
    assert [span.attributes[REASON] for span in spans] == ["store", "unknown_history"]
    assert "the disk is gone" in caplog.text


def test_the_page_lists_each_reason():
    page = Path(__file__).parents[3] / "docs/token-space.md"
    table = page.read_text().partition("| reason |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [one.value for one in Fallback]


def test_what_an_agent_changes_without_meaning_has_the_same_key():
    def key(**changes: Any) -> bytes:
        call = {"id": "a", "function": {"name": "f", "arguments": '{"x": 1, "y": [2, "\u00e9"]}'}}
        said = {"role": "assistant", "content": "text", "tool_calls": [call], **changes}
        request = {"model": "q", "messages": [{"role": "user", "content": "hi"}, said]}
        return conversation_keys(request)[-1]

    again = {"id": "b", "function": {"arguments": '{"y":[2.0,"\\u00e9"],"x":1}', "name": "f"}}
    for same in (
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"content": "<think>\nhm\n</think>\n\ntext"},
        {"content": "text\n"},
        {"content": [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "text"}]},
        {"tool_calls": [again]},
        {"refusal": None, "annotations": [], "audio": None},
    ):
        assert key(**same) == key(), same
    other = {"id": "a", "function": {"name": "f", "arguments": '{"x": 2, "y": [2, "\u00e9"]}'}}
    for different in (
        {"content": "texts"},
        {"tool_calls": []},
        {"tool_calls": [other]},
        {"role": "user"},
    ):
        assert key(**different) != key(), different


def test_histories_are_bounded_by_attempt_and_in_all():
    history, parent = AttemptHistory(), None
    for turn in range(50):
        prompt = [] if parent is None else parent.ids()
        history.keep(bytes([turn]), parent, prompt, [turn] * 10, "stop", limit=500)
        parent = history.answers[bytes([turn])]
        assert history.tokens == parent.length == 10 * turn + 10  # what is shared counts once
    assert parent is not None and not history.cut
    history.keep(b"more", parent, parent.ids(), [1], "stop", limit=500)
    # The last answer of the chain holds its beginning, so all of it goes.
    assert history.tokens == 0 and history.cut and not history.answers
    history = AttemptHistory()
    for turn in range(100):
        history.keep(bytes([turn]), None, [turn] * 10, [turn] * 10, "stop", limit=500)
        assert history.tokens <= 500
    assert history.cut and history.latest([bytes([0])]) is None
    found = history.latest([bytes([99]), bytes([0])])
    assert found is not None and found[0] == 0 and found[1].ids() == [99] * 20

    histories = Histories(max_tokens=100)
    for number in range(50):
        made = histories.of((str(number), "a"))
        made.keep(b"k", None, [1] * 10, [2] * 10, "stop")
        histories.grew(20)
        assert len(histories) == min(number + 1, 5)
    assert histories.of(("49", "a")).tokens == 20 and histories.of(("0", "a")).tokens == 0
    histories = Histories(max_attempts=3)
    for number in range(50):
        histories.of((str(number), "a"))
    assert len(histories) == 3
