"""The simulated model behind the OpenAI chat protocol, on loopback.

Routes: ``POST /v1/chat/completions`` (tools, usage, streaming), ``GET /v1/models`` and
``GET /health``. Errors have OpenAI's shape. Any API key is accepted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from simulated_model.model import MODEL_NAME, SimulatedModel

__all__ = ["create_app", "run_in_background"]


class _Function(BaseModel):
    name: str


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class _ChatRequest(BaseModel):
    """The fields of a chat completion request that the simulated model uses; others are ignored."""

    model: str
    messages: list[_Message]
    tools: list[_Tool] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None


def create_app(model: SimulatedModel) -> Starlette:
    """Make the ASGI app that serves a model."""

    async def chat(request: Request) -> Response:
        try:
            asked = _ChatRequest.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return _error(400, f"{where}: {first['msg']}" if where else first["msg"], where)
        if asked.model != MODEL_NAME:
            message = f"The model {asked.model!r} does not exist; this server has {MODEL_NAME!r}."
            return _error(404, message, "model", "model_not_found")
        if not asked.messages:
            return _error(400, "messages: must not be empty", "messages")
        plain = asked.model_dump()
        completion = _completion(model.reply(plain), plain["messages"])
        if asked.stream:
            with_usage = bool((asked.stream_options or {}).get("include_usage"))
            return StreamingResponse(
                _chunks(completion, with_usage), media_type="text/event-stream"
            )
        return JSONResponse(completion)

    async def models(_: Request) -> Response:
        entry = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "simulated"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "simulated": True})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )


@contextmanager
def run_in_background(seed: int = 0, slip: float = 0.02) -> Iterator[str]:
    """Run the server in a process of its own, and yield its base URL for OpenAI clients.

    The server listens on a free loopback port. It ends with the context, or with this process.

    Raises:
        RuntimeError: The server did not start; the reason is on standard error.
    """
    command = [sys.executable, "-m", "simulated_model", "--seed", str(seed), "--slip", str(slip)]
    server = subprocess.Popen(
        [*command, "--until-stdin-closes"],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl+C in the terminal must end only the training; the server stops later.
        start_new_session=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the simulated model did not start (exit code {server.wait()})")
        yield url
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()


def _completion(message: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    prompt, answer = _count_tokens(messages), _count_tokens([message])
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL_NAME,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        },
    }


def _count_tokens(messages: list[dict[str, Any]]) -> int:
    """Estimate the number of tokens at four characters per token; there is no tokenizer here."""
    return sum(len(json.dumps(message)) for message in messages) // 4


def _chunks(completion: dict[str, Any], with_usage: bool) -> Iterator[str]:
    """Yield a completion as server-sent events, one word at a time."""
    head = {key: completion[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    choice = completion["choices"][0]
    message = choice["message"]

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return f"data: {json.dumps({**head, 'choices': choices})}\n\n"

    yield event({"role": "assistant"})
    for word in re.findall(r"\S+\s*|\s+", message.get("content") or ""):
        yield event({"content": word})
    for index, call in enumerate(message.get("tool_calls", [])):
        yield event({"tool_calls": [{"index": index, **call}]})
    yield event({}, choice["finish_reason"])
    if with_usage:
        tail = {**head, "choices": [], "usage": completion["usage"]}
        yield f"data: {json.dumps(tail)}\n\n"
    yield "data: [DONE]\n\n"


def _error(status: int, message: str, param: str | None, code: str | None = None) -> Response:
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": param or None,
        "code": code,
    }
    return JSONResponse({"error": error}, status_code=status)
