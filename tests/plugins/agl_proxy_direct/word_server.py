"""A model server in memory that samples words, for thousands of conversations a minute.

Its tokens are words, its templates have the rules of families, and each sampled token has a
log-probability that no other has, so a trained token is traced to its sampling.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agl_proxy_direct import Upstream, UpstreamRequest, UpstreamResponse

END, OTHER_END = "<end>", "<other-end>"
Json = dict[str, Any]


class TemplateRefusal(Exception):
    """The template refuses the messages."""


@dataclass(frozen=True)
class Template:
    """The rules of a chat template.

    Attributes:
        strips: Reasoning is rendered only after the last message of the user.
        moves: Tools are rendered before the last message of the user.
        opens: The head of an answer has the mark that begins reasoning.
        single: Two calls in a message are refused.
        marks: What follows an answer depends on its length.
    """

    strips: bool = False
    moves: bool = False
    opens: bool = False
    single: bool = False
    marks: bool = False

    def render(self, request: Mapping[str, Any], *, head: bool) -> list[str]:
        messages, tools = request["messages"], request.get("tools")
        users = [index for index, one in enumerate(messages) if one["role"] == "user"]
        last = users[-1] if users else -1
        words = [] if not tools or self.moves else ["<tools>", *json.dumps(tools).split()]
        for index, message in enumerate(messages):
            if tools and self.moves and index == last:
                words += ["<tools>", *json.dumps(tools).split()]
            words += [f"<{message['role']}>", *self._body(message, index > last), END]
            if self.marks and message["role"] == "assistant":
                words.append("<long>" if len(message.get("content") or "") > 12 else "<short>")
        return words + (["<assistant>", "<think>"][: 1 + self.opens] if head else [])

    def _body(self, message: Mapping[str, Any], current: bool) -> list[str]:
        content: Any = message.get("content") or ""
        if not isinstance(content, str):
            if any(part["type"] != "text" for part in content):
                raise TemplateRefusal("text only")
            content = "".join(part["text"] for part in content)
        if message["role"] != "assistant":
            return content.split()
        calls = message.get("tool_calls") or []
        if self.single and len(calls) > 1:
            raise TemplateRefusal("single tool-calls only")
        thought = message.get("reasoning_content") or ""
        if "</think>" in content:
            thought, content = content.split("</think>", 1)
        words: list[str] = content.split()
        if thought and (current or not self.strips):
            words = ["<think>", *thought.split(), "</think>", *words]
        for call in calls:
            arguments = json.dumps(json.loads(call["function"]["arguments"]))
            words += ["<call>", call["function"]["name"], *arguments.split(), "</call>"]
        return words


@dataclass
class Sampled:
    """One call that the server answered.

    Attributes:
        prompt: The tokens that the model saw.
        body: The request.
        given: Whether the request brought the tokens.
        choices: Token ids and unique log-probabilities of each choice.
    """

    prompt: list[int]
    body: Json
    given: bool
    choices: list[tuple[list[int], list[float]]] = field(default_factory=list)


class WordServer(Upstream):
    """The server.

    Args:
        template: Its template.
        takes_ids: Whether its chat route takes the prompt as token ids.
        renders: Whether it has ``/tokenize``.

    Attributes:
        answers: What it samples next: words, and the finish reason.
        calls: What it answered.
    """

    def __init__(self, template: Template, *, takes_ids: bool = True, renders: bool = True) -> None:
        self.template, self.takes_ids, self.renders = template, takes_ids, renders
        self.answers: list[tuple[list[str], str]] = []
        self.calls: list[Sampled] = []
        self.max_prompt = 10**9
        self._ids: dict[str, int] = {}
        self._numbers = itertools.count(1)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def update(self, backends: Any) -> None:
        """Every backend is this server."""

    async def close(self) -> None:
        """Nothing is open."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        assert isinstance(request.body, dict)
        body = json.loads(json.dumps(request.body))
        if request.endpoint == "/tokenize" and not self.renders:
            return Response(404, {"detail": "Not Found"})
        try:
            if request.endpoint == "/tokenize":
                assert request.backend.url(request.endpoint).endswith(":1/tokenize")
                words = self.template.render(body, head=body["add_generation_prompt"])
                return Response(200, {"tokens": self.encode(words)})
            return self._chat(body)
        except TemplateRefusal as refusal:
            return Response(400, {"error": {"message": str(refusal)}})

    def _chat(self, body: Json) -> UpstreamResponse:
        asked: list[int] | None = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        given = asked is not None and self.takes_ids
        if asked is not None and given:
            ids = asked
        else:
            ids = self.encode(self.template.render(body, head=True))
        if len(ids) > self.max_prompt:
            return Response(400, {"error": {"message": "too long"}})
        call = Sampled(ids, body, given)
        choices: list[Json] = []
        for index in range(body.get("n") or 1):
            words, finish = self.answers.pop(0)
            tokens = self.encode(words)
            logprobs = [-1e-6 * next(self._numbers) for _ in tokens]
            call.choices.append((tokens, logprobs))
            message = parsed(words, opened=self.template.opens)
            if finish == "stop" and message.get("tool_calls"):
                finish = "tool_calls"
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "finish_reason": finish,
                    "token_ids": tokens,
                    "logprobs": {
                        "content": [
                            {"token": word, "logprob": logprob}
                            for word, logprob in zip(words, logprobs, strict=True)
                        ]
                    },
                }
            )
        self.calls.append(call)
        answer = {"id": "a", "model": "q", "choices": choices, "prompt_token_ids": ids}
        return streamed(answer) if body.get("stream") else Response(200, answer)


def parsed(words: list[str], *, opened: bool) -> Json:
    """Return the message of some sampled words."""
    words = [word for word in words if word not in (END, OTHER_END)]
    message: Json = {"role": "assistant"}
    if opened or words[:1] == ["<think>"]:
        words = words if opened else words[1:]
        end = words.index("</think>") if "</think>" in words else len(words)
        message["reasoning_content"] = " ".join(words[:end])
        words = words[end + 1 :]
    calls: list[Json] = []
    while "</call>" in words:
        start, end = words.index("<call>"), words.index("</call>")
        function = {"name": words[start + 1], "arguments": " ".join(words[start + 2 : end])}
        calls.append({"id": f"call-{random.random()}", "type": "function", "function": function})
        words = words[:start] + words[end + 1 :]
    message["content"] = " ".join(words)
    if calls:
        message["tool_calls"] = calls
    return message


class Response(UpstreamResponse):
    def __init__(self, status: int, body: Json | list[bytes]) -> None:
        self.status, self.headers = status, [(b"content-type", b"application/json")]
        self.streamed = isinstance(body, list)
        self._pieces = body if isinstance(body, list) else [json.dumps(body).encode()]

    async def read(self) -> bytes:
        return b"".join(self._pieces)

    async def chunks(self) -> AsyncGenerator[bytes]:
        for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        """Nothing is open."""


def streamed(answer: Json) -> Response:
    """Return an answer as a stream of two chunks per choice."""
    events: list[Json] = []
    for choice in answer["choices"]:
        message = choice["message"]
        delta = {**message, "tool_calls": []}
        for index, call in enumerate(message.get("tool_calls") or ()):
            delta["tool_calls"].append({"index": index, **call})
        half = len(choice["token_ids"]) // 2
        shared = {"index": choice["index"]}
        for part, finish in ((slice(0, half), None), (slice(half, None), choice["finish_reason"])):
            logprobs = {"content": choice["logprobs"]["content"][part]}
            said = delta if finish else {"role": "assistant", "content": ""}
            more = {"delta": said, "finish_reason": finish, "logprobs": logprobs}
            events.append({**shared, **more, "token_ids": choice["token_ids"][part]})
    head = {"id": "a", "model": "q"}
    chunks = [{**head, "choices": [event]} for event in events]
    chunks[0]["prompt_token_ids"] = answer["prompt_token_ids"]
    return Response(
        200, [*(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks), b"data: [DONE]\n\n"]
    )
