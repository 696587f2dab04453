"""A model call as attributes in the dialect of AgentOps, made from what went over the wire.

The SDK's own extraction flattens conversations (a tool's answer becomes ``[Tool Result: …]`` with
Anthropic's client) and knows no tokens. Here every protocol goes through OpenAI's chat format, as
in the proxy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from agl_core.proxy import gen_ai
from agl_core.proxy.codec import translate_request, translate_response
from agl_core.proxy.protocols import Protocol

__all__ = [
    "Json",
    "dumped",
    "plain",
    "request_attributes",
    "response_attributes",
    "tool_calls",
]

Json = dict[str, Any]

_ABSENT: Final = frozenset({"NotGiven", "Omit"})  # what the SDKs pass for parameters left out
_WITHOUT_LOGPROBS: Final[Any] = {"choices": {"__all__": {"logprobs"}}}
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


def plain(value: Any) -> Any:
    """Return what a client library was given or gave as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if type(v).__name__ not in _ABSENT}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def dumped(response: Any) -> Json:
    """Return a client's response as JSON has it, its log-probabilities as the text they end up as.

    They are most of a response, and turning each into Python objects most of its span's cost.
    """
    choices = getattr(response, "choices", None)
    if not isinstance(response, BaseModel) or not isinstance(choices, list):
        return plain(response)
    value = response.model_dump(
        mode="json", exclude_unset=True, warnings=False, exclude=_WITHOUT_LOGPROBS
    )
    for choice, found in zip(choices, value.get("choices") or (), strict=False):
        logprobs = getattr(choice, "logprobs", None)
        if not isinstance(logprobs, BaseModel):
            continue
        for part in ("content", "refusal"):
            if getattr(logprobs, part, None) is not None:
                text = logprobs.model_dump_json(include={part}, warnings=False)
                found[f"logprobs.{part}"] = text[len(f'{{"{part}":') : -1]
    return value


def request_attributes(protocol: Protocol, request: Json) -> Json:
    """Return the attributes of a request: its model, parameters, messages and tools.

    Args:
        protocol: The protocol it is in.
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


def response_attributes(protocol: Protocol, response: Json) -> Json:
    """Return the attributes of a response: its choices, usage, token ids and log-probabilities.

    ``prompt_token_ids`` and ``response_token_ids`` are those of the first choice, lists of
    integers; ``logprobs.content`` and ``logprobs.refusal`` are JSON, one entry per token.
    """
    chat = _with_token_ids(translate_response(protocol, "chat", response))
    usage: Json = chat.get("usage") or {}
    attributes: Json = {
        key: value
        for key, value in gen_ai.response_attributes(chat).items()
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


def tool_calls(attributes: Mapping[str, Any]) -> list[Json]:
    """Return the tool calls that the first choice of a response's attributes asks for."""
    calls: list[Json] = []
    while True:
        prefix = f"gen_ai.completion.0.tool_calls.{len(calls)}"
        if f"{prefix}.name" not in attributes:
            return calls
        calls.append(
            {key: attributes.get(f"{prefix}.{key}") for key in ("id", "name", "arguments")}
        )


def _message(prefix: str, message: Json) -> Json:
    attributes: Json = {
        f"{prefix}.{key}": _primitive(message.get(key))
        for key in ("role", "content", "name", "tool_call_id", "refusal", "reasoning_content")
    }
    for index, call in enumerate(message.get("tool_calls") or ()):
        function: Json = call.get("function") or call.get("custom") or {}
        attributes[f"{prefix}.tool_calls.{index}.id"] = call.get("id")
        attributes[f"{prefix}.tool_calls.{index}.name"] = function.get("name")
        arguments = function.get("arguments", function.get("input"))
        attributes[f"{prefix}.tool_calls.{index}.arguments"] = _primitive(arguments)
    return {key: value for key, value in attributes.items() if value is not None}


def _with_token_ids(chat: Json) -> Json:
    """Put the response's token ids where vLLM has them, wherever an older server put them."""
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
