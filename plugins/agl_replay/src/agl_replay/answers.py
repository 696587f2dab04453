"""Recorded answers as the bytes that a model server sends.

A span holds an answer in the shape of chat, and unchanged those parts that chat does not have. The
answer is written in the protocol of the call; a stream has several chunks, so that the agent's code
for streams runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from agl_core import semconv
from agl_core.genai import (
    CodecError,
    Json,
    Protocol,
    dumps,
    get_protocol,
    loads,
)
from agl_core.ids import generate_id
from agl_replay.blocks import BLOCK_PROTOCOLS, IN_CHAT, block_answer, block_events, pieces

__all__ = ["answer_body", "answer_chunks"]

_ENDS: Final = {
    "native_finish_reason": semconv.STOP_REASON,
    "stop_reason": semconv.STOP_SEQUENCE,
}
"""Attributes by the key of a choice, as OpenRouter and vLLM have them."""
_SAID: Final = {"reasoning": "reasoning_content", "refusal": "refusal"}
"""Keys of a chat message by the kinds of parts of which it has one text each."""


def answer_body(attributes: Mapping[str, Any], protocol: Protocol, request: Json) -> bytes:
    """Return the answer of a call.

    Args:
        attributes: Attributes of the recorded span.
        protocol: Protocol of the answer.
        request: The request that is answered, in that protocol, whose tools give calls their form.

    Raises:
        CodecError: The record does not hold all of the answer.
    """
    if protocol == "completions":
        return dumps(_completion(attributes, request))
    if protocol in BLOCK_PROTOCOLS:
        return dumps(_blocks(attributes, protocol, request))
    return dumps(_chat(attributes, request))


def answer_chunks(
    attributes: Mapping[str, Any], protocol: Protocol, request: Json, *, whole: bool = True
) -> list[bytes]:
    """Return the answer of a call as the events of a stream; parameters as :func:`answer_body`.

    Args:
        attributes: Attributes of the recorded span.
        protocol: Protocol of the answer.
        request: The request that is answered.
        whole: Whether the recorded stream came to its end; if not, only what had come is sent.

    Raises:
        CodecError: The record does not hold all of the answer.
    """
    spoken = get_protocol(protocol)
    if protocol in BLOCK_PROTOCOLS:
        answer = _blocks(attributes, protocol, request)
        events = block_events(answer, _parts(attributes), protocol, whole=whole)
    else:
        events = _choice_events(attributes, protocol, request, whole=whole)
    return [*map(spoken.event, events), *([spoken.stream_end] if whole else [])]


# -- the answer ------------------------------------------------------------------------------------


def _blocks(attributes: Mapping[str, Any], protocol: Protocol, request: Json) -> Json:
    """Return an answer of Messages or Responses."""
    chat = _chat(attributes, request, _without_content)
    spoken: Any = attributes.get("agl.proxy.backend_protocol") or protocol
    return block_answer(chat, _parts(attributes), protocol, request, spoken)


def _chat(
    attributes: Mapping[str, Any],
    request: Json,
    write: Callable[[list[Json]], Json] | None = None,
) -> Json:
    """Return an answer of chat; ``write`` returns the message of parts, by default all of it."""
    choices: list[Json] = []
    for position, message in enumerate(_messages(attributes)):
        choice: Json = {
            "index": position,
            "message": (write or _message)(message["parts"]),
            "finish_reason": message.get("finish_reason") or None,
            "logprobs": None,
        }
        suffix = f".{position}" if position else ""
        ends = {key: attributes.get(name + suffix) for key, name in _ENDS.items()}
        choice |= {key: value for key, value in ends.items() if value is not None}
        logprobs = attributes.get(f"logprobs.content{suffix}")
        if logprobs is not None and _asked(request, "logprobs"):
            content = [{"bytes": None, "top_logprobs": [], **one} for one in _json(logprobs)]
            choice["logprobs"] = {"content": content}
        ids = attributes.get(f"response_token_ids{suffix}")
        if ids is not None and _asked(request, "return_token_ids"):
            choice["token_ids"] = list(ids)
        choices.append(choice)
    return _response(attributes, request, "chat.completion", "prompt_token_ids", choices)


def _completion(attributes: Mapping[str, Any], request: Json) -> Json:
    choices: list[Json] = []
    for choice in _chat(attributes, {**request, "logprobs": True})["choices"]:
        logprobs = choice["logprobs"]
        if logprobs is not None:
            entries = logprobs["content"]
            choice["logprobs"] = {
                "tokens": [one["token"] for one in entries],
                "token_logprobs": [one["logprob"] for one in entries],
            }
        if request.get("logprobs") is None:
            choice["logprobs"] = None
        choice["text"] = choice.pop("message")["content"] or ""
        if "token_ids" in choice and "prompt_token_ids" in attributes:
            choice["prompt_token_ids"] = list(attributes["prompt_token_ids"])
        choices.append(choice)
    return _response(attributes, request, "text_completion", None, choices)


def _response(
    attributes: Mapping[str, Any],
    request: Json,
    kind: str,
    prompt_key: str | None,
    choices: list[Json],
) -> Json:
    response: Json = {
        "id": attributes.get("gen_ai.response.id") or f"replayed-{generate_id(12)}",
        "object": kind,
        "created": 0,
        "model": attributes.get("gen_ai.response.model") or request.get("model"),
        "choices": choices,
    }
    fingerprint = attributes.get("gen_ai.response.system_fingerprint")
    if fingerprint is not None:
        response["system_fingerprint"] = fingerprint
    ids = attributes.get("prompt_token_ids")
    if prompt_key and ids is not None and _asked(request, "return_token_ids"):
        response[prompt_key] = list(ids)
    usage = _usage(attributes)
    if usage is not None:
        response["usage"] = usage
    return response


def _usage(attributes: Mapping[str, Any]) -> Json | None:
    name = "gen_ai.usage."
    prompt = attributes.get(name + "input_tokens")
    output = attributes.get(name + "output_tokens")
    if prompt is None and output is None:
        return None
    usage: Json = {
        "prompt_tokens": prompt or 0,
        "completion_tokens": output or 0,
        "total_tokens": (prompt or 0) + (output or 0),
    }
    details = {
        "cached_tokens": attributes.get(name + "cache_read.input_tokens"),
        "cache_write_tokens": attributes.get(name + "cache_creation.input_tokens"),
    }
    known = {key: count for key, count in details.items() if count is not None}
    if known:
        usage["prompt_tokens_details"] = known
    thought = attributes.get(name + "reasoning.output_tokens")
    if thought is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage


def _asked(request: Json, name: str) -> bool:
    value = request.get(name)
    return value is not None and value is not False  # completions ask with a number, also with 0


def _messages(attributes: Mapping[str, Any]) -> list[Json]:
    found = attributes.get("gen_ai.output.messages")
    return [] if found is None else _json(found)


def _json(value: Any) -> Any:
    return loads(value.encode()) if isinstance(value, str) else value


def _parts(attributes: Mapping[str, Any]) -> list[Json]:
    """Return the parts of the only message of an answer; none if there is no message."""
    return [part for message in _messages(attributes)[:1] for part in message["parts"]]


def _without_content(parts: list[Json]) -> Json:
    """Return the chat message of recorded parts, without those that are its content."""
    return _message([part for part in parts if part.get("type") in IN_CHAT])


def _message(parts: list[Json]) -> Json:
    """Return the chat message of recorded parts.

    Raises:
        CodecError: A chat message has no such part.
    """
    message: Json = {"role": "assistant", "content": None}
    texts = [part.get("content") for part in parts if part.get("type") == "text"]
    if texts:
        message["content"] = "".join(text for text in texts if text is not None)
    for part in parts:
        kind = part.get("type")
        if kind in _SAID:
            key = _SAID[kind]
            text = part.get("content") or part.get("refusal") or ""
            message[key] = message.get(key, "") + text
        elif kind == "tool_call":
            call = {"name": part.get("name"), "arguments": part.get("arguments") or ""}
            if part.get("kind") == "function_call":
                message["function_call"] = call
            else:
                found = {"id": part.get("id"), **_called(part.get("kind"), call)}
                message.setdefault("tool_calls", []).append(found)
        elif kind != "text":
            raise CodecError(f"a replayed chat message cannot have a part of the type {kind!r}")
    return message


def _called(kind: str | None, call: Json) -> Json:
    """Return a call in the form of its kind; records before kinds have that of a function."""
    if kind == "custom":
        return {"type": kind, kind: {"name": call["name"], "input": call["arguments"]}}
    return {"type": "function", "function": call}


# -- streams ---------------------------------------------------------------------------------------


def _choice_events(
    attributes: Mapping[str, Any], protocol: Protocol, request: Json, *, whole: bool
) -> list[Json]:
    """Return the events of a stream of chat or completions."""
    if protocol == "completions":
        events = list(_completion_events(_completion(attributes, request)))
    else:
        events = list(_chat_events(_chat(attributes, request)))
    if not whole:
        # What follows the last piece of a choice says that the choice is complete.
        events = [event for event in events if not _is_end(event)]
    options = request.get("stream_options") or {}
    if not options.get("include_usage"):
        events = [event for event in events if event["choices"]]
    return events


def _chat_events(response: Json) -> Iterator[Json]:
    prompt = response.pop("prompt_token_ids", None)
    for choice in response["choices"]:
        message = choice.pop("message")
        first: Json = {"role": "assistant"}
        if not message.keys() & {"tool_calls", "function_call"}:
            first["content"] = ""
        event = _event(response, choice["index"], delta=first)
        if prompt is not None:
            event["prompt_token_ids"] = prompt
        yield event
        for key in ("reasoning_content", "content", "refusal"):
            for piece in pieces(message.get(key)):
                yield _event(response, choice["index"], delta={key: piece})
        for delta in _call_deltas(message):
            yield _event(response, choice["index"], delta=delta)
        yield _event(response, **choice, delta={})
    yield from _usage_events(response)


def _call_deltas(message: Json) -> Iterator[Json]:
    """Yield the deltas that bring the calls of a chat message."""
    if "function_call" in message:
        for piece in _call_pieces(message["function_call"], "arguments"):
            yield {"function_call": piece}
    for number, call in enumerate(message.get("tool_calls") or ()):
        kind, head = call["type"], {"id": call["id"], "type": call["type"]}
        for piece in _call_pieces(call[kind], "input" if kind == "custom" else "arguments"):
            yield {"tool_calls": [{"index": number, **head, kind: piece}]}
            head = {}


def _call_pieces(call: Json, key: str) -> Iterator[Json]:
    """Yield the name of a call, and the pieces of its text."""
    yield {"name": call["name"], key: ""}
    for piece in pieces(call[key]):
        yield {key: piece}


def _completion_events(response: Json) -> Iterator[Json]:
    for choice in response["choices"]:
        for piece in pieces(choice["text"]):
            yield _event(response, choice["index"], text=piece)
        yield _event(response, **{**choice, "text": ""})
    yield from _usage_events(response)


def _usage_events(response: Json) -> Iterator[Json]:
    usage = response.get("usage")
    if usage is not None:
        yield {**_event(response, 0), "choices": [], "usage": usage}


def _event(response: Json, index: int, **choice: Any) -> Json:
    choice = {"index": index, "finish_reason": None, "logprobs": None, **choice}
    head = {key: value for key, value in response.items() if key not in ("choices", "usage")}
    if head["object"] == "chat.completion":
        head["object"] = "chat.completion.chunk"
    return {**head, "choices": [choice]}


def _is_end(event: Json) -> bool:
    return not event["choices"] or event["choices"][0]["finish_reason"] is not None
