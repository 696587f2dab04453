"""Builds the span attributes of a model call in AgentOps' vocabulary from request and response.

AgentOps' own extraction flattens conversations (with Anthropic's client a tool result becomes the
text ``[Tool Result: ...]``) and leaves out token ids. Here requests and responses of every protocol
are translated to OpenAI's chat format first, as in the proxy.
"""

from __future__ import annotations

import json
from typing import Any, Final

from agl_codec import translate_request
from agl_core import genai
from agl_core.genai import Json, Protocol

__all__ = ["request_attributes", "response_attributes", "tool_calls"]

_ELSEWHERE: Final = frozenset(
    {
        "messages",
        "model",
        "tools",
        "stream",
        "extra_headers",
        "extra_query",
        "timeout",
    }
)


def request_attributes(protocol: Protocol, request: Json) -> Json:
    """Return the attributes of a request: its model, parameters, messages and tools.

    Args:
        protocol: Protocol of the request.
        request: The request as JSON.
    """
    chat = translate_request(protocol, "chat", request)
    attributes: Json = {
        "gen_ai.request.type": "chat",
        "gen_ai.system": "Anthropic" if protocol == "messages" else "OpenAI",
        "gen_ai.request.model": chat.get("model"),
        "gen_ai.request.streaming": bool(request.get("stream")),
    }
    for key, value in chat.items():
        if key not in _ELSEWHERE and value is not None:
            attributes[f"gen_ai.request.{key}"] = _primitive(value)
    for index, message in enumerate(chat.get("messages") or ()):
        attributes |= _message(f"gen_ai.prompt.{index}", message)
    for index, tool in enumerate(chat.get("tools") or ()):
        function = tool.get("function") or tool
        prefix = f"gen_ai.request.functions.{index}"
        for key in ("name", "description", "parameters"):
            attributes[f"{prefix}.{key}"] = _primitive(function.get(key))
    return {key: value for key, value in attributes.items() if value is not None}


def response_attributes(chat: Json) -> Json:
    """Return the attributes of a response: its choices, usage, token ids and log-probabilities.

    ``prompt_token_ids`` and ``response_token_ids`` are lists of integers and belong to the first
    choice; ``logprobs.content`` and ``logprobs.refusal`` are JSON with one entry per token.

    Args:
        chat: The response in the chat protocol.
    """
    chat = _with_token_ids(chat)
    usage: Json = chat.get("usage") or {}
    attributes: Json = {
        key: value
        for key, value in genai.response_attributes(chat).items()
        if key.startswith(("prompt_token_ids", "response_token_ids", "logprobs."))
    }
    attributes |= {
        "gen_ai.response.id": chat.get("id"),
        "gen_ai.response.model": chat.get("model"),
        "gen_ai.openai.system_fingerprint": chat.get("system_fingerprint"),
        "gen_ai.usage.prompt_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.completion_tokens": usage.get("completion_tokens"),
        "gen_ai.usage.total_tokens": usage.get("total_tokens"),
    }
    for choice in chat.get("choices") or ():
        prefix = f"gen_ai.completion.{choice.get('index', 0)}"
        attributes |= _message(prefix, choice.get("message") or {})
        attributes[f"{prefix}.finish_reason"] = choice.get("finish_reason")
        if not choice.get("index"):
            for part in ("logprobs.content", "logprobs.refusal"):
                if choice.get(part) is not None:
                    attributes[part] = choice[part]
        refusal = (choice.get("logprobs") or {}).get("refusal")
        if refusal is not None and not choice.get("index"):
            attributes["logprobs.refusal"] = json.dumps(refusal)
    return {key: value for key, value in attributes.items() if value is not None}


def tool_calls(chat: Json) -> list[Json]:
    """Return the attributes of the tool calls in the first choice of a chat response."""
    message: Json = next(iter(chat.get("choices") or ()), {}).get("message") or {}
    calls = map(_tool_call, message.get("tool_calls") or ())
    return [call for call in calls if call["name"] is not None]


def _message(prefix: str, message: Json) -> Json:
    attributes: Json = {
        f"{prefix}.{key}": _primitive(message.get(key))
        for key in ("role", "content", "name", "tool_call_id", "refusal", "reasoning_content")
    }
    for index, call in enumerate(message.get("tool_calls") or ()):
        for key, value in _tool_call(call).items():
            attributes[f"{prefix}.tool_calls.{index}.{key}"] = value
    return {key: value for key, value in attributes.items() if value is not None}


def _tool_call(call: Json) -> Json:
    function: Json = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments", function.get("input"))
    return {"id": call.get("id"), "name": function.get("name"), "arguments": _primitive(arguments)}


def _with_token_ids(chat: Json) -> Json:
    """Move token ids to the place that vLLM uses now; older servers put them elsewhere."""
    choices: list[Json] = chat.get("choices") or []
    if not choices or choices[0].get("token_ids") is not None:
        return chat
    of_all = chat.get("response_token_ids") or []
    ids = (
        of_all[0] if of_all else (choices[0].get("provider_specific_fields") or {}).get("token_ids")
    )
    if ids is None:
        return chat
    return {**chat, "choices": [{**choices[0], "token_ids": ids}, *choices[1:]]}


def _primitive(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return json.dumps(value, ensure_ascii=False)
