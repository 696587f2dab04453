"""Translates between the protocols of agents and of models: chat, Responses and Messages.

The functions are pure, over parsed JSON. Chat is the hub: a translation from Responses to Messages
goes through chat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from agl_core.genai._errors import MALFORMED, CodecError
from agl_core.genai._parts import calls_in, first_choice, object_at
from agl_core.genai._protocols import ModelProtocol, Protocol, get_protocol
from agl_core.genai._streams import StreamTranslator
from agl_core.genai._wire import Json

__all__ = [
    "can_translate",
    "lost_in_request",
    "lost_in_response",
    "response_events",
    "stream_translator",
    "translate_request",
    "translate_response",
]

T = TypeVar("T")


def can_translate(source: Protocol, target: Protocol) -> bool:
    """Return whether calls of one protocol can be turned into calls of another."""
    pair = get_protocol(source), get_protocol(target)
    return source == target or all(one.translatable for one in pair)


def translate_request(source: Protocol, target: Protocol, request: Json) -> Json:
    """Return a request in another protocol; the original is not changed.

    Raises:
        CodecError: The target has no equivalent, or a field does not have its protocol's type.
    """
    if source == target:
        return request
    agent, model = _pair(source, target)
    chat = _checked(source, agent.request_to_chat, request)
    return _checked(source, model.request_from_chat, chat)


def translate_response(
    source: Protocol, target: Protocol, response: Json, request: Json | None = None
) -> Json:
    """Return a response in another protocol; the original is not changed.

    Args:
        source: Protocol of the response.
        target: Protocol to translate to.
        response: The response.
        request: The request that it answers, in ``target``, whose tools give calls their form.

    Raises:
        CodecError: The target has no equivalent, or a field does not have its protocol's type.
    """
    if source == target:
        return response
    model, agent = _pair(source, target)
    chat = _checked(source, model.response_to_chat, response)
    return _checked(source, partial(agent.response_from_chat, request=request), chat)


def lost_in_request(source: Protocol, target: Protocol, request: Json) -> list[str]:
    """Return the sorted names of the fields that the translation of a request leaves out.

    Raises:
        CodecError: A field does not have its protocol's type.
    """
    if source == target:
        return []
    agent, model = _pair(source, target)
    lost = {*_checked(source, agent.lost_to_chat, request)}
    if not _is_hub(model):
        chat = _checked(source, agent.request_to_chat, request)
        lost |= {*_checked(source, model.lost_from_chat, chat)}
    return sorted(lost)


def lost_in_response(source: Protocol, target: Protocol, response: Json) -> list[str]:
    """Return the sorted names of the fields that the translation of a response leaves out.

    Raises:
        CodecError: A field does not have its protocol's type.
    """
    if source == target:
        return []
    model, agent = _pair(source, target)
    lost = {*_checked(source, model.response_lost_to_chat, response)}
    if not _is_hub(agent):
        chat = _checked(source, model.response_to_chat, response)
        lost |= {*_checked(source, agent.response_lost_from_chat, chat)}
    return sorted(lost)


def stream_translator(
    source: Protocol, target: Protocol, *, usage: bool = False, request: Json | None = None
) -> StreamTranslator:
    """Return a translator of a stream's events from one protocol to another.

    Args:
        source: Protocol of the events to translate.
        target: Protocol to translate to.
        usage: Whether a chat stream ends with a chunk of usage.
        request: The request that is answered, in ``target``, whose tools give calls their form.

    Raises:
        CodecError: There is no translation between the two.
    """
    model, agent = _pair(source, target)
    if _is_hub(agent):
        return model.stream_to_chat(usage=usage)
    if _is_hub(model):
        return agent.stream_from_chat(request)
    return _Chain(model.stream_to_chat(usage=True), agent.stream_from_chat(request))


def response_events(
    source: Protocol,
    target: Protocol,
    response: Json,
    *,
    usage: bool = False,
    request: Json | None = None,
) -> list[Json]:
    """Return a whole response as the events of a stream in another protocol.

    Some servers answer a call for a stream with a whole response.

    Args:
        source: Protocol of the response.
        target: Protocol of the stream.
        response: The response.
        usage: Whether a chat stream ends with a chunk of usage.
        request: The request that is answered, in ``target``.

    Raises:
        CodecError: The target has no equivalent, or a field does not have its protocol's type.
    """
    model, agent = _pair(source, target)
    chat = _checked(source, model.response_to_chat, response)
    chunks = _checked(source, partial(_chunks_of, usage=usage or not _is_hub(agent)), chat)
    if _is_hub(agent):
        return chunks
    translator = agent.stream_from_chat(request)
    return [made for chunk in chunks for made in translator.feed(chunk)] + translator.close()


def _chunks_of(completion: Json, *, usage: bool) -> list[Json]:
    """Return the first choice of a chat completion as chunks."""
    head = {key: completion.get(key) for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    choice = first_choice(completion)
    delta = {**object_at(choice, "message")}
    if calls := calls_in(delta):
        delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
    told = {key: value for key, value in choice.items() if key != "message"}
    first: Json = {**told, "delta": delta, "finish_reason": None}
    last: Json = {**told, "delta": {}, "logprobs": None}
    chunks: list[Json] = [{**head, "choices": [first]}, {**head, "choices": [last]}]
    if usage:
        chunks.append({**head, "choices": [], "usage": completion.get("usage")})
    return chunks


class _Chain(StreamTranslator):
    def __init__(self, first: StreamTranslator, second: StreamTranslator) -> None:
        super().__init__()
        self._first, self._second = first, second

    def feed(self, event: Json) -> list[Json]:
        return [made for chunk in self._first.feed(event) for made in self._second.feed(chunk)]

    def end(self) -> None:
        self._first.end()
        self._second.end()

    def close(self) -> list[Json]:
        rest = [made for chunk in self._first.close() for made in self._second.feed(chunk)]
        return rest + self._second.close()


def _pair(source: Protocol, target: Protocol) -> tuple[ModelProtocol, ModelProtocol]:
    if source == target or not can_translate(source, target):
        raise CodecError(f"{source} calls cannot be turned into {target} calls")
    return get_protocol(source), get_protocol(target)


def _is_hub(protocol: ModelProtocol) -> bool:
    return protocol.name == "chat"


def _checked(source: Protocol, function: Callable[[Json], T], value: Json) -> T:
    """Call a function of a protocol, which takes it that a value has the protocol's types."""
    try:
        return function(value)
    except CodecError:
        raise
    except MALFORMED as error:
        raise CodecError(
            f"a field does not have the type that {source} calls have: "
            f"{type(error).__name__}: {error!s:.200}"
        ) from error
