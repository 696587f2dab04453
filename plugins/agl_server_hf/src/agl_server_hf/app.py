"""The server's ASGI application: models, chat and text completions, and ``/tokenize``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agl_server_hf import protocol
from agl_server_hf.engine import Engine
from agl_server_hf.generation import Generation, Sampling, Token
from agl_server_hf.mailbox import Job, Mailbox
from agl_server_hf.protocol import (
    Body,
    ChatRequest,
    Choice,
    CompletionRequest,
    TokenizeRequest,
)
from agl_server_hf.text import (
    HOLD,
    THINK,
    Answer,
    Detokenizer,
    Regions,
    parse_answer,
    render_chat,
)

__all__ = ["build_app"]

_MAX_BODY_BYTES: Final = 32 * 2**20
"""A context of a million tokens as text takes 4 MB."""
_CLIENT_CLOSED_REQUEST: Final = 499  # nginx's code, for the log; the client has disconnected
_JSON: Final = "application/json"
_OPENING_TOKENS: Final = 16
"""More tokens than the mark at the end of a prompt that begins reasoning, if each is a byte."""
AnyRequest = ChatRequest | CompletionRequest
T = TypeVar("T")


def build_app(
    engine: Engine,
    tokenizer: Any,
    *,
    model: str,
    max_length: int,
    adapters: Collection[str] = (),
    reasoning: bool = False,
    vocabulary: int | None = None,
) -> Starlette:
    """Return the application that serves one model and LoRA adapters of it.

    Args:
        engine: Samples the answers.
        tokenizer: The model's tokenizer.
        model: Name that calls ask for.
        max_length: Largest number of tokens of a prompt and its answer together.
        adapters: Names of the adapters; it may grow while the application runs.
        reasoning: Whether chat answers have their reasoning apart from their content.
        vocabulary: Number of tokens that the model knows; None: those of the tokenizer.
    """
    if vocabulary is None:
        vocabulary = len(tokenizer)
    endpoints = _Endpoints(engine, tokenizer, model, max_length, adapters, reasoning, vocabulary)
    return Starlette(
        routes=[
            Route("/health", endpoints.health),
            Route("/v1/models", endpoints.models),
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/completions", endpoints.complete, methods=["POST"]),
            Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            ClientDisconnect: _client_disconnect,
            Exception: _internal_error,
        },
    )


class _Endpoints:
    """Endpoints of one model and its adapters."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        model: str,
        max_length: int,
        adapters: Collection[str],
        reasoning: bool,
        vocabulary: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        # Each token of each answer is named by its text: at most one entry per token there is.
        self._text_of: Callable[[int], str] = cache(lambda token: tokenizer.decode([token]))
        self._entry_of: Callable[[int], Body] = cache(
            lambda token: protocol.chat_entry(self._text_of(token))
        )
        self._model = model
        self._max_length = max_length
        self._adapters = adapters
        self._reasoning = reasoning
        self._vocabulary = vocabulary
        self._created = int(time.time())
        self._mailbox = Mailbox(engine)

    async def health(self, _: Request) -> Response:
        return Response(b"{}", media_type=_JSON)

    async def models(self, _: Request) -> Response:
        entries = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "agl",
                "max_model_len": self._max_length,
            }
            for name in (self._model, *self._adapters)
        ]
        return Response(to_json({"object": "list", "data": entries}), media_type=_JSON)

    async def chat(self, http: Request) -> Response:
        request = await self._read(http, ChatRequest)
        return await self._answer(http, request, [self._chat_prompt(request)])

    async def complete(self, http: Request) -> Response:
        request = await self._read(http, CompletionRequest)
        return await self._answer(http, request, self._prompts(request))

    async def tokenize(self, http: Request) -> Response:
        request: TokenizeRequest = await self._read(http, TokenizeRequest)
        tokens = self._render(request)
        body = {"count": len(tokens), "max_model_len": self._max_length, "tokens": tokens}
        return Response(to_json(body), media_type=_JSON)

    async def _read(self, http: Request, kind: type[Any]) -> Any:
        body = bytearray()
        async for chunk in http.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {_MAX_BODY_BYTES} bytes")
        try:
            request = kind.model_validate(from_json(bytes(body)))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            message = f"{where}: {first['msg']}" if where else first["msg"]
            raise HTTPException(400, message) from error
        except ValueError as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from error
        if request.model != self._model and request.model not in self._adapters:
            names = ", ".join(map(repr, (self._model, *sorted(self._adapters))))
            raise HTTPException(404, f"this server serves {names}, not {request.model!r}")
        return request

    # -- prompts ---------------------------------------------------------------------------------

    def _chat_prompt(self, request: ChatRequest) -> list[int]:
        try:
            given = request.prompt_ids
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        if given is None:
            given = self._render(request)
        return self._checked([given])[0]

    def _render(self, request: ChatRequest | TokenizeRequest) -> list[int]:
        options = {
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continue_final_message,
            **request.chat_template_kwargs,
        }
        try:
            return render_chat(self._tokenizer, request.messages, request.tools, **options)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    def _prompts(self, request: CompletionRequest) -> list[list[int]]:
        given = request.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = cast("Any", [given])
        prompts = [
            self._tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
            if isinstance(prompt, str)
            else list(prompt)
            for prompt in cast("list[Any]", given)
        ]
        return self._checked(prompts)

    def _checked(self, prompts: list[list[int]]) -> list[list[int]]:
        """Return prompts of token ids that the model knows.

        Raises:
            HTTPException: 400.
        """
        if not prompts or not all(prompts):
            raise HTTPException(400, "a prompt has no tokens")
        if any(not 0 <= token < self._vocabulary for prompt in prompts for token in prompt):
            raise HTTPException(400, f"a token id is not below {self._vocabulary}")
        return prompts

    def _sampling(self, request: AnyRequest, prompt: Sequence[int], index: int) -> Sampling:
        room = self._max_length - len(prompt)
        wanted = request.token_limit
        if room < (wanted or 1):
            raise HTTPException(
                400,
                f"this model's maximum context length is {self._max_length} tokens; the prompt "
                f"has {len(prompt)}, and the answer needs {wanted or 1}",
            )
        return Sampling(
            max_tokens=wanted or room,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
            # Answers to one prompt must differ from each other and yet be repeatable.
            seed=None if request.seed is None else request.seed + index,
            stop_ids=frozenset(request.stop_token_ids),
            ignore_eos=request.ignore_eos,
            top_logprobs=request.top,
        )

    # -- answers ---------------------------------------------------------------------------------

    async def _answer(
        self, http: Request, request: AnyRequest, prompts: list[list[int]]
    ) -> Response:
        job = self._prepare(request, prompts)
        if request.stream:
            return StreamingResponse(
                self._stream(request, job),
                media_type="text/event-stream",
                headers={"cache-control": "no-cache"},
            )
        try:
            body = await _while_connected(http, self._whole(request, job))
        finally:
            self._cancel(job)
        if body is None:
            raise ClientDisconnect
        return Response(to_json(body), media_type=_JSON)

    def _cancel(self, job: Job) -> None:
        """Stop sampling; without an effect on sequences that have ended."""
        for generation in job.generations:
            self._engine.cancel(generation)

    def _prepare(self, request: AnyRequest, prompts: list[list[int]]) -> Job:
        """Return the sequences that a request asks for; nothing is sampled yet."""
        self._mailbox.open()
        job = Job(streams=request.stream)
        adapter = None if request.model == self._model else request.model
        for prompt in prompts:
            for _ in range(request.n):
                sampling = self._sampling(request, prompt, len(job.choices))
                stop = Detokenizer(self._tokenizer, request.stops)
                choice = Choice(len(job.choices), prompt)
                generation = Generation(
                    prompt,
                    sampling,
                    partial(self._mailbox.put, job, choice),
                    stop.is_stop if request.stops else None,
                    adapter,
                    stream=request.stream,
                )
                if not request.stream:
                    choice.tokens, choice.ids = generation.tokens, generation.token_ids
                job.choices.append(choice)
                job.generations.append(generation)
        return job

    async def _tokens(self, job: Job) -> AsyncGenerator[tuple[Choice, Token]]:
        """Sample and yield tokens until every choice has its last one.

        Of an answer that is not streamed only the last token is yielded.
        """
        self._engine.submit(*job.generations)
        open_choices = len(job.choices)
        while open_choices:
            await job.arrived.wait()
            job.arrived.clear()
            while job.events:
                choice, token = job.events.popleft()
                if isinstance(token, Exception):
                    raise HTTPException(500, f"the model failed: {token}")
                if job.streams:
                    choice.tokens.append(token)
                    choice.ids.append(token.id)
                open_choices -= token.finish_reason is not None
                yield choice, token

    async def _whole(self, request: AnyRequest, job: Job) -> Body:
        async for _ in self._tokens(job):
            pass
        choices = job.choices
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
        regions = self._regions(request, choice, text)
        answer = parse_answer(text, tools=request.reads_tools, regions=regions)
        last = choice.tokens[-1]
        body: Body = {
            "index": choice.index,
            "logprobs": self._logprobs(request, choice.tokens, 0),
            "finish_reason": protocol.finish_reason(last, answer),
        }
        if isinstance(request, ChatRequest):
            body["message"] = message = Body(role="assistant", content=answer.content)
            if answer.reasoning is not None:
                message["reasoning_content"] = answer.reasoning
            if answer.tool_calls:
                message["tool_calls"] = protocol.tool_calls(answer, indexed=False)
        else:
            body["text"] = text
        if request.return_token_ids:
            body["token_ids"] = choice.ids
            if not isinstance(request, ChatRequest):
                body["prompt_token_ids"] = choice.prompt
        return body

    def _regions(self, request: AnyRequest, choice: Choice, text: str) -> Regions:
        """Return where the reasoning of an answer is."""
        if not self._reasoning or not isinstance(request, ChatRequest):
            return Regions()
        opened = choice.reasoning_open
        if opened is None:
            before: str = self._tokenizer.decode(choice.prompt[-_OPENING_TOKENS:])
            opened = choice.reasoning_open = before.rstrip().endswith(THINK[0])
        return Regions.of(text, opened=opened)

    def _logprobs(self, request: AnyRequest, tokens: Sequence[Token], offset: int) -> Body | None:
        if not request.wants_logprobs:
            return None
        if isinstance(request, ChatRequest):
            return protocol.chat_logprobs(tokens, self._entry_of)
        return protocol.completion_logprobs(tokens, self._text_of, offset)

    async def _stream(self, request: AnyRequest, job: Job) -> AsyncGenerator[bytes]:
        try:
            async for event in self._events(request, job):
                yield event
        except HTTPException as error:
            yield b"data: " + _error_body(error.status_code, error.detail) + b"\n\n"
        finally:
            self._cancel(job)

    async def _events(self, request: AnyRequest, job: Job) -> AsyncGenerator[bytes]:
        """Yield the server-sent events of a streamed answer."""
        choices = job.choices
        chat = isinstance(request, ChatRequest)
        kind = "chat.completion.chunk" if chat else "text_completion"
        response_id = protocol.new_id("chatcmpl" if chat else "cmpl")
        hold = HOLD if request.reads_tools else None
        marks = THINK if self._reasoning and chat else ()
        texts = [Detokenizer(self._tokenizer, request.stops, hold, marks) for _ in choices]

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
        async for choice, token in self._tokens(job):
            yield event([self._chunk(request, choice, token, texts[choice.index])])
        if request.wants_usage:
            yield event([], usage=protocol.usage(choices))
        yield b"data: [DONE]\n\n"

    def _chunk(self, request: AnyRequest, choice: Choice, token: Token, text: Detokenizer) -> Body:
        """Return what one more token adds to a choice."""
        start = text.given
        text.advance(choice.ids)
        whole, end = text.text(choice.ids), text.given
        regions = self._regions(request, choice, whole)
        answer = Answer(None)
        if token.finish_reason is not None:
            answer = parse_answer(whole, tools=request.reads_tools, regions=regions)
            end = max(end, answer.visible)
        new = regions.content_in(whole, start, end)
        thought = regions.reasoning_in(whole, start, end)
        body: Body = {
            "index": choice.index,
            "logprobs": self._logprobs(request, [token], 0),
            "finish_reason": protocol.finish_reason(token, answer),
        }
        if isinstance(request, ChatRequest):
            body["delta"] = delta = Body(content=new)
            if thought:
                delta["reasoning_content"] = thought
            if answer.tool_calls:
                delta["tool_calls"] = protocol.tool_calls(answer, indexed=True)
        else:
            body["text"] = new
        if request.return_token_ids:
            body["token_ids"] = [token.id]
            if not isinstance(request, ChatRequest) and len(choice.tokens) == 1:
                body["prompt_token_ids"] = choice.prompt
        return body


async def _while_connected(http: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the work, or None if the client disconnects first."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        continue


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = _error_body(error.status_code, error.detail)
    return Response(body, error.status_code, media_type=_JSON)


async def _client_disconnect(_: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _internal_error(_: Request, error: Exception) -> Response:
    """Report a failure to the client; Starlette raises it again afterwards, and uvicorn logs it."""
    return Response(_error_body(500, repr(error)), 500, media_type=_JSON)


def _error_body(status: int, message: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return to_json({"error": {"message": message, "type": kind, "param": None, "code": status}})
