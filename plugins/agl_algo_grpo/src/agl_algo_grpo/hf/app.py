"""The server's ASGI application: ``/health``, ``/v1/models``, chat and text completions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from agl_algo_grpo.hf import protocol
from agl_algo_grpo.hf.engine import Engine, Generation, Sampling, Token
from agl_algo_grpo.hf.protocol import Body, ChatRequest, Choice, CompletionRequest
from agl_algo_grpo.hf.text import HOLD, Answer, Detokenizer, parse_answer, render_chat
from agl_serving import (
    ClientGone,
    HTTPError,
    Message,
    Receive,
    Send,
    Stream,
    read_body,
    send_response,
    send_stream,
    while_connected,
)

__all__ = ["App"]

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 32 * 2**20
_SSE: Final = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
AnyRequest = ChatRequest | CompletionRequest
_Job = tuple[list[Choice], list[Generation], "asyncio.Queue[tuple[Choice, Token | Exception]]"]


class App:
    """Answers calls of one model.

    Args:
        engine: Samples.
        tokenizer: The model's.
        model: Name that calls ask for.
        max_length: Most tokens of a prompt and its answer together.
    """

    def __init__(self, engine: Engine, tokenizer: Any, *, model: str, max_length: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._model = model
        self._max_length = max_length
        self._created = int(time.time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except ClientGone:
            return
        except HTTPError as error:
            await send_response(send, error.status, _error_body(error.status, str(error.detail)))
        except Exception as error:
            logger.exception("%s failed", scope["path"])
            await send_response(send, 500, _error_body(500, repr(error)))

    async def _route(self, scope: Message, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"].rstrip("/"))
        if route == ("GET", "/health"):
            await send_response(send, 200, b"{}")
        elif route == ("GET", "/v1/models"):
            entry = {
                "id": self._model,
                "object": "model",
                "created": self._created,
                "owned_by": "agl",
                "max_model_len": self._max_length,
            }
            await send_response(send, 200, to_json({"object": "list", "data": [entry]}))
        elif route == ("POST", "/v1/chat/completions"):
            request = await self._read(scope, receive, ChatRequest)
            await self._answer(request, [self._chat_prompt(request)], receive, send)
        elif route == ("POST", "/v1/completions"):
            request = await self._read(scope, receive, CompletionRequest)
            await self._answer(request, self._prompts(request), receive, send)
        else:
            raise HTTPError(404, f"there is no {route[0]} {route[1]}")

    async def _read(self, scope: Message, receive: Receive, kind: type[Any]) -> Any:
        body = await read_body(receive, dict(scope["headers"]), _MOST_BYTES)
        try:
            request = kind.model_validate(from_json(body))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise HTTPError(400, f"{where}: {first['msg']}" if where else first["msg"]) from error
        except ValueError as error:
            raise HTTPError(400, f"the body is no JSON: {error}") from error
        if request.model != self._model:
            raise HTTPError(404, f"this server serves {self._model!r}, not {request.model!r}")
        return request

    # -- prompts ---------------------------------------------------------------------------------

    def _chat_prompt(self, request: ChatRequest) -> list[int]:
        try:
            return render_chat(
                self._tokenizer, request.messages, request.tools, **request.chat_template_kwargs
            )
        except ValueError as error:
            raise HTTPError(400, str(error)) from error

    def _prompts(self, request: CompletionRequest) -> list[list[int]]:
        given = request.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = cast("Any", [given])
        prompts = [
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in cast("list[Any]", given)
        ]
        if not prompts or not all(prompts):
            raise HTTPError(400, "a prompt has no tokens")
        vocabulary = len(self._tokenizer)
        if any(not 0 <= token < vocabulary for prompt in prompts for token in prompt):
            raise HTTPError(400, f"a token id is not below {vocabulary}")
        return prompts

    def _sampling(self, request: AnyRequest, prompt: Sequence[int], index: int) -> Sampling:
        room = self._max_length - len(prompt)
        wanted = request.most_tokens
        if room < (wanted or 1):
            raise HTTPError(
                400,
                f"this model's maximum context length is {self._max_length} tokens; the prompt "
                f"has {len(prompt)} and {wanted or 1} are to come",
            )
        return Sampling(
            max_tokens=wanted or room,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(0, request.top_k or 0),
            # Several answers to one prompt are to differ, and yet be repeatable.
            seed=None if request.seed is None else request.seed + index,
            stop_ids=frozenset(request.stop_token_ids),
            ignore_eos=request.ignore_eos,
            top_logprobs=request.top,
        )

    # -- answers ---------------------------------------------------------------------------------

    async def _answer(
        self, request: AnyRequest, prompts: list[list[int]], receive: Receive, send: Send
    ) -> None:
        job = self._begin(request, prompts)
        try:
            if request.stream:
                stream = Stream(self._stream(request, job), _SSE)
                await send_stream(stream, send, receive, _never())
                return
            body, connected = await while_connected(self._whole(request, job), receive, _never())
            if body is not None and connected:
                await send_response(send, 200, to_json(body))
        finally:
            for generation in job[1]:
                self._engine.cancel(generation)

    def _begin(self, request: AnyRequest, prompts: list[list[int]]) -> _Job:
        """Ask the engine for everything that a request asks for."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[Choice, Token | Exception]] = asyncio.Queue()
        choices: list[Choice] = []
        generations: list[Generation] = []
        for prompt in prompts:
            for _ in range(request.n):
                choice = Choice(len(choices), prompt)
                sampling = self._sampling(request, prompt, choice.index)
                stop = Detokenizer(self._tokenizer, request.stops)

                def emit(token: Token | Exception, choice: Choice = choice) -> None:
                    loop.call_soon_threadsafe(arrived.put_nowait, (choice, token))

                is_stop = stop.is_stop if request.stops else None
                generations.append(Generation(prompt, sampling, emit, is_stop))
                choices.append(choice)
        for generation in generations:
            self._engine.submit(generation)
        return choices, generations, arrived

    async def _tokens(self, job: _Job) -> AsyncGenerator[tuple[Choice, Token]]:
        """Yield tokens as they come, until every choice has its last one."""
        choices, _, arrived = job
        open_choices = len(choices)
        while open_choices:
            choice, token = await arrived.get()
            if isinstance(token, Exception):
                raise HTTPError(500, f"the model failed: {token}")
            choice.tokens.append(token)
            open_choices -= token.finish_reason is not None
            yield choice, token

    async def _whole(self, request: AnyRequest, job: _Job) -> Body:
        async for _ in self._tokens(job):
            pass
        choices = job[0]
        chat = isinstance(request, ChatRequest)
        kind = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        body = protocol.head(request, protocol.new_id(prefix), kind)
        body["choices"] = [self._choice(request, choice) for choice in choices]
        body["usage"] = protocol.usage(choices)
        if chat and request.return_token_ids:
            body["prompt_token_ids"] = choices[0].prompt
        return body

    def _choice(self, request: AnyRequest, choice: Choice) -> Body:
        text = Detokenizer(self._tokenizer, request.stops).text(choice.ids)
        answer = parse_answer(text, tools=request.reads_tools)
        last = choice.tokens[-1]
        body: Body = {
            "index": choice.index,
            "logprobs": self._logprobs(request, choice.tokens, 0),
            "finish_reason": protocol.finish_reason(last, answer),
        }
        if isinstance(request, ChatRequest):
            body["message"] = message = Body(role="assistant", content=answer.content)
            if answer.tool_calls:
                message["tool_calls"] = protocol.tool_calls(answer, indexed=False)
        else:
            body["text"] = text
        if request.return_token_ids:
            body["token_ids"] = choice.ids
            if not isinstance(request, ChatRequest):
                body["prompt_token_ids"] = choice.prompt
        return body

    def _logprobs(self, request: AnyRequest, tokens: Sequence[Token], offset: int) -> Body | None:
        if not request.wants_logprobs:
            return None
        decode = self._tokenizer.decode
        if isinstance(request, ChatRequest):
            return protocol.chat_logprobs(tokens, decode)
        return protocol.completion_logprobs(tokens, decode, offset)

    async def _stream(self, request: AnyRequest, job: _Job) -> AsyncGenerator[bytes]:
        choices = job[0]
        chat = isinstance(request, ChatRequest)
        kind = "chat.completion.chunk" if chat else "text_completion"
        response_id = protocol.new_id("chatcmpl" if chat else "cmpl")
        hold = HOLD if request.reads_tools else None
        texts = [Detokenizer(self._tokenizer, request.stops, hold) for _ in choices]

        def event(body_choices: list[Body], **more: Any) -> bytes:
            head = protocol.head(request, response_id, kind)
            return b"data: " + to_json({**head, "choices": body_choices, **more}) + b"\n\n"

        if chat:
            first = [
                {
                    "index": choice.index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
                for choice in choices
            ]
            ids = {"prompt_token_ids": choices[0].prompt} if request.return_token_ids else {}
            yield event(first, **ids)
        try:
            async for choice, token in self._tokens(job):
                yield event([self._chunk(request, choice, token, texts[choice.index])])
        except HTTPError as error:
            yield b"data: " + _error_body(error.status, str(error.detail)) + b"\n\n"
            return
        if request.wants_usage:
            yield event([], usage=protocol.usage(choices))
        yield b"data: [DONE]\n\n"

    def _chunk(self, request: AnyRequest, choice: Choice, token: Token, text: Detokenizer) -> Body:
        """Return the part of a choice that one token brings."""
        new = text.advance(choice.ids)
        answer = Answer(None)
        if token.finish_reason is not None:
            answer = parse_answer(text.text(choice.ids), tools=request.reads_tools)
            new += text.rest(answer.content or "")
        body: Body = {
            "index": choice.index,
            "logprobs": self._logprobs(request, [token], 0),
            "finish_reason": protocol.finish_reason(token, answer),
        }
        if isinstance(request, ChatRequest):
            body["delta"] = delta = Body(content=new)
            if answer.tool_calls:
                delta["tool_calls"] = protocol.tool_calls(answer, indexed=True)
        else:
            body["text"] = new
        if request.return_token_ids:
            body["token_ids"] = [token.id]
            if not isinstance(request, ChatRequest) and len(choice.tokens) == 1:
                body["prompt_token_ids"] = choice.prompt
        return body


def _never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _error_body(status: int, message: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return to_json({"error": {"message": message, "type": kind, "param": None, "code": status}})
