"""Replies in OpenAI's chat and completion formats, with vLLM's token ids on request.

Formats: OpenAI API reference, "Chat" and "Completions"; vLLM's ``return_token_ids``: for chat
``prompt_token_ids`` on the top level (in a stream: on the first chunk) and ``token_ids`` on each
choice, for completions both on the choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agl_scripted.script import Reply, Token, prompt_tokens, tokenize
from agl_scripted.templates import ChatTemplate

__all__ = ["chat", "chat_stream", "completion", "completion_stream", "error"]

_CREATED = 1_700_000_000
"""A fixed time, so that equal scripts give equal answers."""


def error(reply: Reply) -> dict[str, Any]:
    """Return OpenAI's error body."""
    return {
        "error": {
            "message": reply.error_message,
            "type": "scripted_error",
            "param": None,
            "code": str(reply.error_status),
        }
    }


def _usage(prompt_ids: list[int], reply: Reply) -> dict[str, int]:
    prompt = len(prompt_ids)
    completion = len(reply.tokens) + sum(len(tokenize(text)) for text in reply.others)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _prompt_ids(request: Mapping[str, Any], template: ChatTemplate | None = None) -> list[int]:
    prompt = prompt_tokens(request) if template is None else template.prompt(request)
    return [token.id for token in prompt]


def _chat_logprobs(tokens: list[Token]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": token.text,
                "logprob": token.logprob,
                "bytes": list(token.text.encode()),
                "top_logprobs": [],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _tool_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for call in reply.tool_calls
    ]


def chat(
    request: Mapping[str, Any],
    reply: Reply,
    response_id: str,
    template: ChatTemplate | None = None,
) -> dict[str, Any]:
    """Return a whole chat completion; a template makes its prompt."""
    prompt_ids = _prompt_ids(request, template)
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(reply)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": reply.finish,
    }
    body: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion",
        "created": _CREATED,
        "model": request.get("model"),
        "choices": [choice],
        "usage": _usage(prompt_ids, reply),
    }
    sampled = [reply.tokens, *map(tokenize, reply.others)]
    for index, text in enumerate(reply.others, start=1):
        message = {"role": "assistant", "content": text}
        body["choices"].append({**choice, "index": index, "message": message})
    for made, tokens in zip(body["choices"], sampled, strict=True):
        made["logprobs"] = _chat_logprobs(tokens) if request.get("logprobs") else None
        if request.get("return_token_ids"):
            made["token_ids"] = [token.id for token in tokens]
    if request.get("return_token_ids"):
        body["prompt_token_ids"] = prompt_ids
    return body


def chat_stream(
    request: Mapping[str, Any],
    reply: Reply,
    response_id: str,
    template: ChatTemplate | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a streamed chat completion: one token each."""
    prompt_ids = _prompt_ids(request, template)
    wants_ids = bool(request.get("return_token_ids"))

    def chunk(delta: dict[str, Any], tokens: list[Token], finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        choice["logprobs"] = _chat_logprobs(tokens) if request.get("logprobs") and tokens else None
        if wants_ids and tokens:
            choice["token_ids"] = [token.id for token in tokens]
        return {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": _CREATED,
            "model": request.get("model"),
            "choices": [choice],
        }

    first = chunk({"role": "assistant", "content": ""}, [], None)
    if wants_ids:
        first["prompt_token_ids"] = prompt_ids
    yield first
    text_tokens = Reply(text=reply.text).tokens
    for token in text_tokens:
        yield chunk({"content": token.text}, [token], None)
    rest = reply.tokens[len(text_tokens) :]
    for index, call in enumerate(_tool_calls(reply)):
        head = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield chunk({"tool_calls": [head]}, rest, None)
        rest = []
        arguments = call["function"]["arguments"]
        for start in range(0, len(arguments), 8):
            piece = {"arguments": arguments[start : start + 8]}
            yield chunk({"tool_calls": [{"index": index, "function": piece}]}, [], None)
    for index, text in enumerate(reply.others, start=1):
        for token in tokenize(text):
            yield _of_choice(index, chunk({"content": token.text}, [token], None))
        yield _of_choice(index, chunk({}, [], reply.finish))
    yield chunk({}, rest, reply.finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        last = chunk({}, [], None)
        yield {**last, "choices": [], "usage": _usage(prompt_ids, reply)}


def _of_choice(index: int, chunk: dict[str, Any]) -> dict[str, Any]:
    return {**chunk, "choices": [{**chunk["choices"][0], "index": index}]}


def completion(request: Mapping[str, Any], reply: Reply, response_id: str) -> dict[str, Any]:
    """Return a whole text completion."""
    body = _completion_chunk(request, reply.tokens, reply.finish, response_id)
    body["usage"] = _usage(_prompt_ids(request), reply)
    if request.get("return_token_ids"):
        body["choices"][0]["prompt_token_ids"] = _prompt_ids(request)
    return body


def completion_stream(
    request: Mapping[str, Any], reply: Reply, response_id: str
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a streamed text completion: one token each."""
    tokens = reply.tokens
    for index, token in enumerate(tokens):
        finish = reply.finish if index == len(tokens) - 1 else None
        chunk = _completion_chunk(request, [token], finish, response_id)
        if index == 0 and request.get("return_token_ids"):
            chunk["choices"][0]["prompt_token_ids"] = _prompt_ids(request)
        yield chunk
    if (request.get("stream_options") or {}).get("include_usage"):
        last = _completion_chunk(request, [], None, response_id)
        yield {**last, "choices": [], "usage": _usage(_prompt_ids(request), reply)}


def _completion_chunk(
    request: Mapping[str, Any], tokens: list[Token], finish: str | None, response_id: str
) -> dict[str, Any]:
    logprobs = None
    if request.get("logprobs") is not None:
        logprobs = {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": None,
            "text_offset": [0] * len(tokens),
        }
    choice: dict[str, Any] = {
        "index": 0,
        "text": "".join(token.text for token in tokens),
        "finish_reason": finish,
        "logprobs": logprobs,
    }
    if request.get("return_token_ids"):
        choice["token_ids"] = [token.id for token in tokens]
    return {
        "id": response_id,
        "object": "text_completion",
        "created": _CREATED,
        "model": request.get("model"),
        "choices": [choice],
    }
