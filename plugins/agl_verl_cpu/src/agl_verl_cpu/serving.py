"""An OpenAI-compatible app on top of a :class:`~agl_verl_cpu.generation.Generator`.

It supports ``return_token_ids`` like vLLM's server: the prompt's ids are at the top level, the
answer's ids in the choice. In a stream the prompt's ids are in the first chunk and the answer's ids
in each chunk. Log-probabilities are of the sampled distribution, temperature included.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from agl_verl_cpu.generation import Generator, Token

__all__ = ["build_app"]

Json = dict[str, Any]


def build_app(generator: Generator, model_name: str) -> FastAPI:
    """Return the app: ``/health``, ``/v1/models`` and ``/v1/chat/completions``.

    Args:
        generator: Generates the answers.
        model_name: Model that ``/v1/models`` lists; requests may name any model.
    """
    app = FastAPI()

    async def health() -> Response:
        return Response()

    async def models() -> Json:
        return {"object": "list", "data": [{"id": model_name, "object": "model"}]}

    async def chat(request: Request) -> Response:
        body: Json = await request.json()
        if body.get("n", 1) != 1:
            return _refuse("this server gives one choice per request")
        prompt = generator.encode(body["messages"], body.get("tools"))
        if len(prompt) >= generator.max_length:
            return _refuse(
                f"the prompt has {len(prompt)} tokens; this model's maximum context length is "
                f"{generator.max_length} tokens"
            )
        answer = _Answer(body, prompt, generator)
        if body.get("stream"):
            return StreamingResponse(answer.chunks(), media_type="text/event-stream")
        return JSONResponse(await answer.whole())

    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    return app


class _Answer:
    """The answer to one request."""

    def __init__(self, body: Json, prompt: list[int], generator: Generator) -> None:
        self.generator = generator
        self.prompt = prompt
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        self.max_tokens: int = limit or generator.max_length
        temperature = body.get("temperature")
        self.temperature = 1.0 if temperature is None else float(temperature)
        self.wants_ids = bool(body.get("return_token_ids"))
        self.wants_logprobs = bool(body.get("logprobs"))
        self.wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.head: Json = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.get("model"),
        }
        self.count = 0
        self.last: int | None = None

    async def whole(self) -> Json:
        tokens = [token async for token in self._tokens()]
        choice: Json = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(t.text for t in tokens)},
            "finish_reason": self._finish_reason(),
            **self._details(tokens),
        }
        ids: Json = {"prompt_token_ids": self.prompt} if self.wants_ids else {}
        return {
            **self.head,
            "object": "chat.completion",
            **ids,
            "choices": [choice],
            "usage": self._usage(),
        }

    async def chunks(self) -> AsyncIterator[str]:
        first: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        ids: Json = {"prompt_token_ids": self.prompt} if self.wants_ids else {}
        yield self._event({"choices": [{**first, "finish_reason": None}], **ids})
        async for token in self._tokens():
            choice = {"index": 0, "delta": {"content": token.text}, **self._details([token])}
            yield self._event({"choices": [{**choice, "finish_reason": None}]})
        last = {"index": 0, "delta": {}, "finish_reason": self._finish_reason()}
        yield self._event({"choices": [last]})
        if self.wants_usage:
            yield self._event({"choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    async def _tokens(self) -> AsyncIterator[Token]:
        source = self.generator.stream(self.prompt, self.max_tokens, self.temperature)
        async for token in _in_thread(lambda: source):
            self.count += 1
            self.last = token.id
            yield token

    def _finish_reason(self) -> str:
        return "stop" if self.last in self.generator.stop_ids else "length"

    def _details(self, tokens: list[Token]) -> Json:
        details: Json = {}
        if self.wants_ids:
            details["token_ids"] = [token.id for token in tokens]
        if self.wants_logprobs:
            details["logprobs"] = {
                "content": [{"token": t.text, "logprob": t.logprob} for t in tokens]
            }
        return details

    def _usage(self) -> Json:
        prompt = len(self.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.count,
            "total_tokens": prompt + self.count,
        }

    def _event(self, chunk: Json) -> str:
        return f"data: {json.dumps({**self.head, 'object': 'chat.completion.chunk', **chunk})}\n\n"


async def _in_thread(source: Callable[[], Any]) -> AsyncIterator[Any]:
    """Iterate in a worker thread, which stops after the next item when the reader has left."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()
    gone = threading.Event()

    def put(done: bool, item: Any) -> None:
        loop.call_soon_threadsafe(items.put_nowait, (done, item))

    def work() -> None:
        iterator = source()
        try:
            for item in iterator:
                put(False, item)
                if gone.is_set():
                    break
            put(True, None)
        except BaseException as error:
            put(True, error)
        finally:
            iterator.close()  # releases the model, also after an early end

    worker = loop.run_in_executor(None, work)
    try:
        while True:
            done, item = await items.get()
            if done:
                if item is not None:
                    raise item
                return
            yield item
    finally:
        gone.set()
        await asyncio.shield(worker)


def _refuse(message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "code": 400}
    return JSONResponse({"error": error}, status_code=400)
