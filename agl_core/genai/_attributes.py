"""Converts requests and responses to span attributes of OpenTelemetry's GenAI conventions.

Shapes: opentelemetry.io/docs/specs/semconv/gen-ai, "gen-ai-input-messages.json" and
"gen-ai-output-messages.json". The functions take requests and responses of OpenAI's chat
or completion protocol; other protocols are translated first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from agl_core import semconv
from agl_core.genai._parts import calls_in, function_of, object_at, objects_in, split_content
from agl_core.genai._wire import Json, dumps

_NAMES: Final = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n": "choice.count",
    "stop": "stop_sequences",
}
_ELSEWHERE: Final = frozenset({"model", "messages", "prompt", "input", "stream", "tools"})

_USUAL_ENTRY: Final = frozenset({"token", "logprob", "bytes", "top_logprobs"})

_SECRET: Final = re.compile(
    r"(api[-_]?key|auth|authorization|(auth|authorization|access)[-_]token|cookie|secret|password)$",
    re.IGNORECASE,
)


def request_attributes(request: Json) -> Json:
    """Return the parameters of a request; values that are not primitives become JSON.

    Keys and passwords are left out: gateways take them in the body, and tools on other servers
    (MCP) carry headers.
    """
    attributes: Json = {}
    for key, value in request.items():
        if value is None or key in _ELSEWHERE:
            continue
        value = without_secrets(value, key)
        if not isinstance(value, (str, bool, int, float)):
            value = dumps(value).decode()
        attributes[f"gen_ai.request.{_NAMES.get(key, key)}"] = value
    if request.get("tools"):
        tools = without_secrets(request["tools"])
        attributes["gen_ai.tool.definitions"] = dumps(tools).decode()
    return attributes


def without_secrets(value: Any, key: str = "") -> Any:
    """Return a value with ``[redacted]`` in place of each text whose name is that of a secret."""
    if isinstance(value, str):
        return "[redacted]" if _SECRET.search(key) else value
    if isinstance(value, dict):
        fields = cast("Json", value).items()
        return {name: without_secrets(item, str(name)) for name, item in fields}
    if isinstance(value, list):
        return [without_secrets(item, key) for item in cast("list[Any]", value)]
    return value


def response_attributes(response: Json) -> Json:
    """Return the attributes of a response, token ids and log-probabilities included."""
    choices = objects_in(response.get("choices"))
    identity = response.get("id")
    attributes: Json = {
        "gen_ai.response.id": str(identity) if identity else None,
        "gen_ai.response.model": response.get("model") or None,
        "gen_ai.output.messages": dumps(output_messages(choices)).decode(),
        "gen_ai.response.finish_reasons": [str(c.get("finish_reason") or "") for c in choices],
        "gen_ai.response.system_fingerprint": response.get("system_fingerprint"),
        "prompt_token_ids": response.get("prompt_token_ids"),
    }
    for position, choice in enumerate(choices):
        # Adapters read the first choice. The ids of other choices have a suffix.
        suffix = f".{position}" if position else ""
        attributes["response_token_ids" + suffix] = _token_ids(response, choice, position)
        attributes |= {key + suffix: value for key, value in _end(choice).items()}
        content = _logprobs(choice.get("logprobs"))
        if content is not None:
            attributes["logprobs.content" + suffix] = dumps(content).decode()
        prompt_ids = choice.get("prompt_token_ids")
        if prompt_ids is not None:
            attributes["prompt_token_ids" + suffix] = prompt_ids
    attributes |= usage_attributes(response)
    return {key: value for key, value in attributes.items() if value is not None}


def _token_ids(response: Json, choice: Json, position: int) -> list[int] | None:
    """Return a choice's token ids from where vLLM, its older versions or LiteLLM put them."""
    of_all: list[list[int]] = response.get("response_token_ids") or []
    other: Json = choice.get("provider_specific_fields") or {}
    if choice.get("token_ids") is not None:
        return choice["token_ids"]
    return of_all[position] if position < len(of_all) else other.get("token_ids")


def _end(choice: Json) -> Json:
    """Return the attributes of a choice's end that its finish reason does not have.

    ``stop_reason`` is vLLM's key, ``native_finish_reason`` that of OpenRouter.
    """
    found = {
        semconv.STOP_REASON: choice.get("native_finish_reason"),
        semconv.STOP_SEQUENCE: choice.get("stop_reason"),
    }
    return {key: value for key, value in found.items() if isinstance(value, str | int)}


def usage_attributes(response: Json) -> Json:
    """Return the numbers of input and output tokens."""
    usage = object_at(response, "usage")
    prompt = object_at(usage, "prompt_tokens_details")
    completion = object_at(usage, "completion_tokens_details")
    attributes = {
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "gen_ai.usage.cache_read.input_tokens": prompt.get("cached_tokens"),
        # A translation to Responses counts 0 where the backend does not count.
        "gen_ai.usage.cache_creation.input_tokens": prompt.get("cache_write_tokens") or None,
        "gen_ai.usage.reasoning.output_tokens": completion.get("reasoning_tokens"),
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _logprobs(logprobs: Json | None) -> list[Json] | None:
    """Return one entry per token, as in chat; completions have parallel lists instead."""
    if not logprobs:
        return None
    content = logprobs.get("content")
    if content is not None:
        return [
            # An answer has hundreds of entries, nearly all of this form.
            {"token": entry["token"], "logprob": entry["logprob"]}
            if entry and entry.keys() == _USUAL_ENTRY and entry["top_logprobs"] == []
            else _entry(entry)
            for entry in cast("list[Json | None]", content)
        ]
    if logprobs.get("token_logprobs") is None:
        return None
    pairs = zip(logprobs.get("tokens") or (), logprobs["token_logprobs"], strict=False)
    return [{"token": token, "logprob": logprob} for token, logprob in pairs]


def _entry(entry: Json | None) -> Json:
    if not entry:
        return {"token": None, "logprob": None}  # the server does not know it
    return {key: value for key, value in entry.items() if key != "bytes" and value != []}


# -- messages ------------------------------------------------------------------------------------


def input_messages(request: Json) -> list[Json]:
    """Return the messages of a chat or completion request."""
    messages = request.get("messages")
    if messages is None:
        return _prompts(request.get("prompt"))
    return [_message(message) for message in cast("list[Json]", messages)]


def _prompts(prompt: Any) -> list[Json]:
    """Return the prompts of a text completion as messages; one of token ids is not text."""
    if prompt is None:
        return []
    prompts = cast("list[Any]", prompt if isinstance(prompt, list) else [prompt])
    if prompts and all(isinstance(one, int) for one in prompts):
        prompts = [prompts]
    return [
        {"role": "user", "parts": [{"type": "text", "content": one}]}
        if isinstance(one, str)
        else {"role": "user", "parts": [{"type": "token_ids", "content": one}]}
        for one in prompts
    ]


def output_messages(choices: Iterable[Json]) -> list[Json]:
    """Return the model's message of each choice."""
    found: list[Json] = []
    for choice in choices:
        message = choice.get("message") or {"role": "assistant", "content": choice.get("text")}
        said = _message(message)
        said["parts"] = _with_kinds(said["parts"], message)
        found.append({**said, "finish_reason": choice.get("finish_reason") or ""})
    return found


def _message(message: Json) -> Json:
    found = {"role": message.get("role"), "parts": message_parts(message)}
    if message.get("name") is not None:
        found["name"] = message["name"]
    return found


def _with_kinds(parts: list[Json], message: Json) -> list[Json]:
    """Return the parts of an answer, in which a call has its ``kind`` unless it is a function's.

    The calls in a request have no kinds: requests are compared with those of older records.
    """
    kinds = iter([_kind_of(call, message) for call in calls_in(message)])
    return [
        {**part, "kind": kind}
        if part.get("type") == "tool_call" and (kind := next(kinds, None))
        else part
        for part in parts
    ]


def _kind_of(call: Json, message: Json) -> str | None:
    if isinstance(message.get("function_call"), dict) and not call.get("id"):
        return "function_call"  # the form before tools, whose calls have no id
    return "custom" if not object_at(call, "function") and object_at(call, "custom") else None


def message_parts(message: Json) -> list[Json]:
    """Return the parts of a chat message."""
    content: Any = message.get("content")
    if message.get("role") == "tool":
        return [
            {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        ]
    parts: list[Json] = []
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if thoughts and (reasoning := split_content(thoughts)[0]):
        parts.append({"type": "reasoning", "content": reasoning})
    calls = calls_in(message)
    if isinstance(content, str):
        if content or not calls:
            parts.append({"type": "text", "content": content})
    elif isinstance(content, list):
        parts += [_part(part) for part in cast("list[Any]", content) if part is not None]
    if message.get("refusal"):
        parts.append({"type": "refusal", "content": message["refusal"]})
    for call in calls:
        name, arguments = function_of(call)
        # The arguments are the model's text, which may be invalid JSON.
        parts.append(
            {"type": "tool_call", "id": call.get("id"), "name": name, "arguments": arguments}
        )
    return parts


def _part(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "content": part}
    if not isinstance(part, dict):
        return {"type": "unknown", "content": part}
    found = cast("Json", part)
    kind = found.get("type")
    if kind == "text" and isinstance(found.get("text"), str):
        return {"type": "text", "content": found["text"]}
    if kind == "thinking":
        return {"type": "reasoning", "content": "".join(split_content([found]))}
    if kind == "image_url":
        image: Any = found.get("image_url")
        url = cast("Json", image).get("url") if isinstance(image, dict) else image
        return {"type": "uri", "modality": "image", "uri": url}
    return found
