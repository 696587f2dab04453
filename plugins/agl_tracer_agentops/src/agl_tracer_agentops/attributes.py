"""Builds the span attributes of a model call in AgentOps' vocabulary from request and response.

AgentOps' own extraction flattens conversations (with Anthropic's client a tool result becomes the
text ``[Tool Result: ...]``) and leaves out token ids. Here requests and responses of every protocol
are read as chat first, as the default tracer does.
"""

from __future__ import annotations

import json
from typing import Any, Final

from agl_core import genai
from agl_core.genai import Json, Protocol, get_protocol

__all__ = ["request_attributes", "response_attributes", "tool_calls"]

_SYSTEMS: Final = {"anthropic": "Anthropic", "openai": "OpenAI"}
"""AgentOps' names of the providers, by the client's library."""
_ELSEWHERE: Final = frozenset(
    {
        "messages",
        "model",
        "prompt",
        "tools",
        "stream",
        "extra_headers",
        "extra_query",
        "timeout",
    }
)


def request_attributes(protocol: Protocol, request: Json) -> Json:
    """Return the attributes of a request: its model, parameters, messages and tools.

    Keys and passwords are left out, as the default tracer does.

    Args:
        protocol: Protocol of the request.
        request: The request as JSON.
    """
    chat = get_protocol(protocol).recorded_request(request)
    attributes: Json = {
        "gen_ai.request.type": "chat",
        "gen_ai.system": _SYSTEMS[get_protocol(protocol).client],
        "gen_ai.request.model": chat.get("model"),
        "gen_ai.request.streaming": bool(request.get("stream")),
    }
    for key, value in chat.items():
        if key not in _ELSEWHERE and value is not None:
            attributes[f"gen_ai.request.{key}"] = _primitive(genai.without_secrets(value, key))
    prompted = [{"role": "user", "content": chat["prompt"]}] if "prompt" in chat else []
    for index, message in enumerate(chat.get("messages") or prompted):
        attributes |= _message(f"gen_ai.prompt.{index}", message)
    for index, tool in enumerate(chat.get("tools") or ()):
        function = tool.get("function") or tool
        prefix = f"gen_ai.request.functions.{index}"
        for key in ("name", "description", "parameters"):
            value = function.get(key)
            if key == "parameters" and value is None:
                value = function.get("input_schema")  # Anthropic's name for it
            attributes[f"{prefix}.{key}"] = _primitive(value)
    return {key: value for key, value in attributes.items() if value is not None}


def response_attributes(chat: Json) -> Json:
    """Return the attributes of a response: its choices, usage, token ids and log-probabilities.

    ``prompt_token_ids`` and ``response_token_ids`` are lists of integers and belong to the first
    choice; ``logprobs.content`` and ``logprobs.refusal`` are JSON with one entry per token.

    Args:
        chat: The response in the chat protocol.
    """
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
        "gen_ai.usage.total_tokens": _total(usage),
    }
    for choice in chat.get("choices") or ():
        prefix = f"gen_ai.completion.{choice.get('index', 0)}"
        written = {"role": "assistant", "content": choice.get("text")}  # of a completion
        attributes |= _message(prefix, choice.get("message") or written)
        attributes[f"{prefix}.finish_reason"] = choice.get("finish_reason")
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


def _total(usage: Json) -> int | None:
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if "total_tokens" in usage or prompt is None or completion is None:
        return usage.get("total_tokens")
    return prompt + completion


def _primitive(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return json.dumps(value, ensure_ascii=False)
