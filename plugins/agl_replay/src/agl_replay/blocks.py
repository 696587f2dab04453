"""Recorded answers of Messages and Responses, which are lists of typed blocks or items.

Formats: Anthropic API reference, "Create a Message" and "Streaming messages"; OpenAI API reference,
"Responses" and "Responses streaming".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from agl_core.genai import CodecError, Json, Protocol, dumps, translate_response

__all__ = ["BLOCK_PROTOCOLS", "IN_CHAT", "block_answer", "block_events", "pieces"]

_PIECES: Final = 16
"""Most chunks that a text is cut into."""
_THOUGHTS: Final = frozenset({"thinking", "reasoning"})
IN_CHAT: Final = frozenset({"reasoning", "tool_call"})
"""Parts whose form a translation from chat gives."""
_CHANGED: Final = frozenset({"token_ids", "tool_call_response", "unknown", "uri"})
"""Parts that the record made of a block, whose own form is not known."""
_OWN_TOOLS: Final = ("custom", "function", "namespace")
"""Types of the tools of Responses that give their calls a form."""
_FINISHES: Final = frozenset(
    {None, "content_filter", "function_call", "length", "stop", "tool_calls"}
)
"""Finish reasons of chat; a record has any other as its server gave it."""
_HIDDEN: Final = {"output": [], "usage": None, "incomplete_details": None}


def block_answer(
    chat: Json, parts: Sequence[Json], protocol: Protocol, request: Json, spoken: Protocol
) -> Json:
    """Return a recorded answer with one block or item per part.

    A record has the reasoning of an answer first and the tool calls last; what is between them
    keeps its order.

    Args:
        chat: The answer in the shape of chat, without its content.
        parts: The recorded parts.
        protocol: Messages or Responses.
        request: The request that is answered, in that protocol.
        spoken: Protocol of the server that was recorded.

    Raises:
        CodecError: A part cannot be restored.
    """
    form = _FORMS[protocol]
    key = form.key
    answer = translate_response("chat", protocol, chat, _with_own_tools(request))
    # Of a silent chat message Responses makes an item without content.
    made = [one for one in answer[key] if one["type"] != "message"]
    said = [part for part in parts if part.get("type") not in IN_CHAT]
    logprobs = _logprobs(chat)
    known = spoken == protocol
    own = [
        form.block(part, known, f"msg_{answer['id']}" + (f"_{number}" if number else ""), logprobs)
        for number, part in enumerate(said)
    ]
    choice: Json = next(iter(chat["choices"]), {})
    finish = choice.get("finish_reason")
    unknown = None if finish in _FINISHES else finish
    thoughts = [one for one in made if one["type"] in _THOUGHTS]
    calls = [one for one in made if one["type"] not in _THOUGHTS]
    return {**answer, **form.end(choice, unknown), key: [*thoughts, *own, *calls]}


def block_events(
    answer: Json, parts: Iterable[Json], protocol: Protocol, *, whole: bool = True
) -> list[Json]:
    """Return the events of a stream of an answer.

    Args:
        answer: The answer of :func:`block_answer`.
        parts: The recorded parts. A call's arguments are streamed as the model wrote them.
        protocol: Messages or Responses.
        whole: Whether the stream came to its end; if not, its last block or item stays open.
    """
    written = [part.get("arguments") or "" for part in parts if part.get("type") == "tool_call"]
    return _FORMS[protocol].events(answer, written, whole)


def pieces(text: str | None) -> Iterator[str]:
    """Yield the pieces in which a stream has a text."""
    if text:
        size = max(16, -(-len(text) // _PIECES))
        for start in range(0, len(text), size):
            yield text[start : start + size]


def _with_own_tools(request: Json) -> Json:
    """Return a request without tools of the server, for some of which chat has no equivalent."""
    given: Any = request.get("tools")
    tools = [tool for tool in given or () if tool.get("type") in _OWN_TOOLS]
    return {**request, "tools": tools}


# -- blocks and items ------------------------------------------------------------------------------


def _message_block(part: Json, known: bool, item_id: str, logprobs: list[Any]) -> Json:
    if part.get("type") in ("text", "refusal"):  # a refusal is a text here
        return {"type": "text", "text": part.get("content") or ""}
    return _native(part, known)


def _output_item(part: Json, known: bool, item_id: str, logprobs: list[Any]) -> Json:
    kind, text = part.get("type"), part.get("content") or ""
    if kind == "text":
        told = _taken(logprobs, text)
        content = {"type": "output_text", "text": text, "annotations": [], "logprobs": told}
    elif kind == "refusal":
        content = {"type": "refusal", "refusal": text or part.get("refusal") or ""}
    else:
        # Other content of a message has no item of its own.
        return _native(part, known and not str(kind).startswith("output_"))
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }


def _native(part: Json, known: bool) -> Json:
    """Return a part that the record has as the server sent it.

    Args:
        part: The part.
        known: Whether the protocol of the answer has such blocks or items.
    """
    kind = part.get("type")
    if kind is None or kind in _CHANGED or not known:
        raise CodecError(f"the record does not hold all of a part of the type {kind!r}")
    return part


def _logprobs(chat: Json) -> list[Any]:
    told = [choice["logprobs"]["content"] for choice in chat["choices"][:1] if choice["logprobs"]]
    return list(chain.from_iterable(told))


def _taken(logprobs: list[Any], text: str) -> list[Any]:
    """Take the entries of the tokens of a text from those of all texts, which a record joins."""
    taken: list[Any] = []
    length = 0
    while logprobs and length < len(text):
        taken.append(logprobs.pop(0))
        length += len(taken[-1]["token"] or "")
    return taken


def _message_end(choice: Json, unknown: str | None) -> Json:
    """Return the fields that say why a message ended; ``unknown`` is an end that chat has not."""
    reason = choice.get("native_finish_reason") or unknown
    if reason is None:
        return {}
    return {"stop_reason": reason, "stop_sequence": choice.get("stop_reason")}


def _response_end(choice: Json, unknown: str | None) -> Json:
    """Return the fields that say why a response ended; parameters as :func:`_message_end`."""
    if unknown is None:
        return {}
    return {"status": "incomplete", "incomplete_details": {"reason": unknown}}


# -- streams of Messages ---------------------------------------------------------------------------


def _message_events(answer: Json, written: Iterable[str], whole: bool) -> list[Json]:
    usage: Json = answer["usage"]
    end = {key: answer[key] for key in ("stop_reason", "stop_sequence")}
    counted = {**usage, "output_tokens": 0} if whole else usage
    start = {**answer, "content": [], **dict.fromkeys(end), "usage": counted}
    arguments = iter(written)
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(answer["content"]):
        empty, deltas = _block_pieces(block, arguments)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += ({"type": "content_block_delta", "index": index, "delta": one} for one in deltas)
        events.append({"type": "content_block_stop", "index": index})
    if not whole:
        return events[:-1] if answer["content"] else events
    return [
        *events,
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]


def _block_pieces(block: Json, arguments: Iterator[str]) -> tuple[Json, list[Json]]:
    """Return a block as it begins, and the deltas that complete it."""
    kind = block["type"]
    if kind in ("text", "thinking"):
        cut = pieces(block[kind])
        return {**block, kind: ""}, [{"type": f"{kind}_delta", kind: piece} for piece in cut]
    if "input" not in block:
        return block, []
    text = next(arguments) if kind == "tool_use" else dumps(block["input"]).decode()
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
    return {**block, "input": {}}, deltas


# -- streams of Responses --------------------------------------------------------------------------


def _response_events(answer: Json, written: Iterable[str], whole: bool) -> list[Json]:
    begun = {**answer, "status": "in_progress", **_HIDDEN}
    items = [_item_events(item, at) for at, item in enumerate(answer["output"])]
    if items and not whole:
        opened, _ = items.pop()
        items.append((opened, []))
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *chain.from_iterable([*opened, *done] for opened, done in items),
    ]
    if whole:
        events.append({"type": f"response.{answer['status']}", "response": answer})
    return [
        {"type": event["type"], "sequence_number": number, **event}
        for number, event in enumerate(events)
    ]


def _item_events(item: Json, index: int) -> tuple[list[Json], list[Json]]:
    """Return the events that open and fill an item, and those that close it."""
    empty, filled, done = _item_pieces(item)
    where = {"output_index": index}
    within = {**where, "item_id": item.get("id")}
    return (
        [
            {"type": "response.output_item.added", **where, "item": empty},
            *({**event, **within} for event in filled),
        ],
        [
            *({**event, **within} for event in done),
            {"type": "response.output_item.done", **where, "item": item},
        ],
    )


def _item_pieces(item: Json) -> tuple[Json, list[Json], list[Json]]:
    """Return an item as it begins, the events that fill it, and those that close its parts."""
    kind = item["type"]
    begun = {**item, "status": "in_progress"}
    if kind == "message":
        return {**begun, "content": []}, *_content_events(item["content"][0])
    if kind == "function_call":
        name = "response.function_call_arguments"
        said = {"name": item["name"], "arguments": item["arguments"]}
        return {**begun, "arguments": ""}, *_text_events(name, item["arguments"], said)
    if kind == "custom_tool_call":
        name = "response.custom_tool_call_input"
        text = {"input": item["input"]}
        return {**begun, "input": ""}, *_text_events(name, item["input"], text)
    if kind == "reasoning" and item["content"]:
        text = item["content"][0]["text"]
        at = {"content_index": 0}
        events = _text_events("response.reasoning_text", text, {"text": text}, at)
        return {**item, "content": []}, *events
    return item, [], []


def _content_events(part: Json) -> tuple[list[Json], list[Json]]:
    """Return the events that open and fill the part of a message, and those that close it."""
    at = {"content_index": 0}
    if part["type"] == "refusal":
        told = {"refusal": part["refusal"]}
        filled, done = _text_events("response.refusal", part["refusal"], told, at)
        empty = {**part, "refusal": ""}
    else:
        told = {"text": part["text"], "logprobs": part["logprobs"]}
        filled, done = _text_events(
            "response.output_text", part["text"], told, {**at, "logprobs": []}
        )
        empty = {**part, "text": "", "logprobs": []}
    added = {"type": "response.content_part.added", **at, "part": empty}
    ended = {"type": "response.content_part.done", **at, "part": part}
    return [added, *filled], [*done, ended]


def _text_events(
    name: str, text: str, told: Json, more: Mapping[str, Any] | None = None
) -> tuple[list[Json], list[Json]]:
    """Return the events that bring a text in pieces, and the one that has all of it."""
    deltas = [{"type": f"{name}.delta", "delta": piece, **(more or {})} for piece in pieces(text)]
    return deltas, [{"type": f"{name}.done", **(more or {}), **told}]


class _Form(NamedTuple):
    """What is particular to a protocol."""

    key: str
    """Key of the list of blocks or items."""
    block: Callable[[Json, bool, str, list[Any]], Json]
    end: Callable[[Json, str | None], Json]
    events: Callable[[Json, Iterable[str], bool], list[Json]]


_FORMS: Final[Mapping[Protocol, _Form]] = {
    "messages": _Form("content", _message_block, _message_end, _message_events),
    "responses": _Form("output", _output_item, _response_end, _response_events),
}
BLOCK_PROTOCOLS: Final = _FORMS.keys()
"""The protocols whose answers are lists of blocks or items."""
