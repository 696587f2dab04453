"""Streams of OpenAI's Responses: translation to and from chat.

Format: OpenAI API reference, "Responses streaming".
"""

from __future__ import annotations

from typing import Any, Final

from agl_core.genai._parts import (
    answer_text,
    calls_in,
    delta_of,
    first_choice,
    object_at,
    objects_in,
    write_arguments,
)
from agl_core.genai._streams import StreamTranslator, error_of, failure_of
from agl_core.genai._tool_calls import Piece, ToolCallPieces
from agl_core.genai._wire import Json
from agl_core.genai.chat._stream import ChatAssembler
from agl_core.genai.responses._assembly import LAST, PIECES, ResponsesAssembler
from agl_core.genai.responses._response import (
    finish_of,
    output_items,
    response_from_responses,
    response_head,
    response_to_responses,
    usage_from_responses,
)
from agl_core.genai.responses._tools import ToolForms

__all__ = ["ChatToResponses", "ResponsesToChat"]


class ChatToResponses(StreamTranslator):
    """Translates the first choice of a chat stream to the events of a Responses stream.

    An item opens with its first content. All items are closed at the end, when their whole content
    is known; the protocol allows several open items.
    """

    def __init__(self, tools: ToolForms | None = None) -> None:
        super().__init__()
        self._number = 0
        self._tools = tools or ToolForms(None)
        self._pieces = ToolCallPieces()
        self._whole = ChatAssembler()
        self._head: Json = {}
        self._places: dict[Any, Json] = {}
        """``output_index`` and ``item_id`` of each open item."""
        self._parts: dict[str, int] = {}
        """Index of each part of the message by its kind, in the order in which they open."""
        self._custom: set[int] = set()
        """Numbers of the calls of custom tools, whose text is known at the end only."""
        self._ended = False

    def feed(self, event: Json) -> list[Json]:
        error = error_of(event)
        if error is not None:
            return [self._error(error, event.get("error") or event)]
        choices = [one for one in objects_in(event.get("choices")) if not one.get("index")]
        self._whole.feed({**event, "choices": choices})
        if not choices:
            return []  # Azure's first chunk has no id
        events: list[Json] = []
        if not self._head:
            self._head = response_head(self._whole.result(), "in_progress")
            events.append(self._event("response.created", response=self._head))
            events.append(self._event("response.in_progress", response=self._head))
        for choice in choices:
            events += self._delta(delta_of(choice), object_at(choice, "logprobs"))
            failure = failure_of(choice)
            if failure is not None:
                events.append(self._error(failure, choice.get("error") or {"message": failure}))
        return events

    def _error(self, message: str, details: Any) -> Json:
        told = {"message": message, "code": "server_error", "param": None}
        return self._event("error", **told, error=details)

    def _delta(self, delta: Json, logprobs: Json) -> list[Json]:
        events: list[Json] = []
        text, thoughts = answer_text(delta)
        if thoughts:
            item: Json = {"type": "reasoning", "summary": [], "content": []}
            events += self._open("rs", f"rs_{self._head['id']}", item)
            events.append(self._delta_event("response.reasoning_text.delta", "rs", thoughts))
        for kind, piece in (("output_text", text), ("refusal", delta.get("refusal"))):
            if piece:
                events += self._open_text(kind)
                more: Json = {"content_index": self._parts[kind]}
                if kind == "output_text":
                    more["logprobs"] = logprobs.get("content") or []
                events.append(self._delta_event(f"response.{kind}.delta", "msg", piece, **more))
        for call in calls_in(delta):
            for piece in self._pieces.feed(call):
                events += self._call(piece)
        return events

    def _call(self, piece: Piece) -> list[Json]:
        number, events = piece.place, list[Json]()
        if piece.begins:
            # The forms of a custom tool's call have no arguments before its end.
            fields = self._tools.item(piece.name, "")
            item_id = f"fc_{self._head['id']}_{number}"
            call_id = piece.id or f"call_{self._head['id']}_{number}"
            item = {**fields, "status": "in_progress", "call_id": call_id}
            events += self._open(number, item_id, item)
            if self._tools.is_custom(piece.name):
                self._custom.add(number)
        if piece.arguments and number not in self._custom:
            kind = "response.function_call_arguments.delta"
            events.append(self._delta_event(kind, number, piece.arguments))
        return events

    def _open(self, key: Any, item_id: str, item: Json) -> list[Json]:
        if key in self._places:
            return []
        index = len(self._places)
        self._places[key] = {"output_index": index, "item_id": item_id}
        item = {"id": item_id, **item}
        return [self._event("response.output_item.added", output_index=index, item=item)]

    def _open_text(self, kind: str) -> list[Json]:
        item: Json = {"type": "message", "role": "assistant", "content": []}
        item["status"] = "in_progress"
        events = self._open("msg", f"msg_{self._head['id']}", item)
        if kind not in self._parts:
            part: Json = {"type": "refusal", "refusal": ""}
            if kind == "output_text":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            index = self._parts[kind] = len(self._parts)
            where = {**self._places["msg"], "content_index": index}
            events.append(self._event("response.content_part.added", **where, part=part))
        return events

    def _delta_event(self, name: str, key: Any, delta: str, **more: Any) -> Json:
        return self._event(name, **self._places[key], delta=delta, **more)

    def end(self) -> None:
        self._ended = bool(self._head)

    def close(self) -> list[Json]:
        whole = self._whole.result()
        choice = first_choice(whole)
        ended = self._ended or choice.get("finish_reason") is not None
        if not ended or self._whole.error is not None:
            return []  # truncated or failed: the stream must not look complete
        events = [event for piece in self._pieces.close() for event in self._call(piece)]
        for item in output_items(whole, choice, self._tools):
            events += self._close_item(self._as_streamed(item))
        created = {**whole, "created": self._head.get("created_at")}
        response = response_to_responses(created, self._tools)
        in_order = sorted(map(self._as_streamed, response["output"]), key=self._position)
        name = f"response.{response['status']}"
        return [*events, self._event(name, response={**response, "output": in_order})]

    def _as_streamed(self, item: Json) -> Json:
        """Return an item with its parts in the order of their indexes in the stream."""
        if item["type"] != "message":
            return item
        last = len(self._parts)
        parts = sorted(item["content"], key=lambda part: self._parts.get(part["type"], last))
        return {**item, "content": parts}

    def _position(self, item: Json) -> int:
        key = item["id"]
        places = {place["item_id"]: place["output_index"] for place in self._places.values()}
        return places.get(key, len(places))

    def _close_item(self, item: Json) -> list[Json]:
        where = next((p for p in self._places.values() if p["item_id"] == item["id"]), None)
        if where is None:  # an empty response, whose item never opened
            events = self._open("msg", item["id"], {**item, "status": "in_progress"})
            where = self._places["msg"]
        else:
            done = _done_events(item)
            events = [self._event(*named, **where, **fields) for *named, fields in done]
        index = where["output_index"]
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _event(self, kind: str, **fields: Any) -> Json:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def _done_events(item: Json) -> list[tuple[str, Json]]:
    """Return the events that close the parts of an item, and their fields."""
    if item["type"] == "custom_tool_call":
        text = item["input"]
        kind = "response.custom_tool_call_input"
        return [(f"{kind}.delta", {"delta": text}), (f"{kind}.done", {"input": text})]
    if item["type"] == "function_call":
        fields = {"name": item["name"], "arguments": item["arguments"]}
        return [("response.function_call_arguments.done", fields)]
    if item["type"] == "reasoning":
        text = item["content"][0]["text"]
        return [("response.reasoning_text.done", {"content_index": 0, "text": text})]
    found: list[tuple[str, Json]] = []
    for index, part in enumerate(item["content"]):
        fields: Json = {"content_index": index}
        if part["type"] == "refusal":
            found.append(("response.refusal.done", {**fields, "refusal": part["refusal"]}))
        else:
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            found.append(("response.output_text.done", {**fields, **text}))
        found.append(("response.content_part.done", {**fields, "part": part}))
    return found


_FIELDS: Final = {
    "response.output_text": "content",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_content",
    "response.reasoning_summary_text": "reasoning_content",
}
"""Field of a chat message by kind of event."""
_CALLS: Final = ("function_call", "custom_tool_call")


def _is_named_call(item: Json) -> bool:
    return item.get("type") in _CALLS and bool(item.get("name"))


class ResponsesToChat(StreamTranslator):
    """Translates the events of a Responses stream to chunks of a chat stream.

    What deltas did not bring is sent when a ``.done`` event, an item or the response has it.
    """

    def __init__(self, *, usage: bool = False) -> None:
        super().__init__(usage=usage)
        self._head: Json = {}
        self._calls: dict[int, int] = {}
        """Numbers of tool calls by the place of their item."""
        self._sent: dict[tuple[int, str], str] = {}
        """Text sent so far by the place of the item and the field of chat."""
        self._whole = ResponsesAssembler()

    def feed(self, event: Json) -> list[Json]:
        self._whole.feed(event)
        kind: str = event.get("type") or ""
        if kind in ("error", "response.failed") or (not kind and self._whole.error is not None):
            return [{"error": {"message": self._whole.error, "type": "server_error"}}]
        begun = self._begin(event)
        if kind in LAST:
            output = objects_in(object_at(event, "response").get("output"))
            return begun + [
                chunk
                for place, item in zip(self._whole.places_of(output), output, strict=True)
                for chunk in self._rest(place, item)
            ]
        place = self._whole.place
        name, _, step = kind.rpartition(".")
        if name in PIECES and step == "delta":
            return begun + self._delta(place, name, event)
        if kind == "response.output_item.added":
            item = object_at(event, "item")
            return begun + (self._call(place, item) if _is_named_call(item) else [])
        if kind == "response.output_item.done" or (name in PIECES and step == "done"):
            return begun + self._rest(place, self._whole.item(place))
        return begun

    def _begin(self, event: Json) -> list[Json]:
        if self._head:
            return []
        response = object_at(event, "response")
        self._head = {
            "id": response.get("id"),
            "object": "chat.completion.chunk",
            "created": int(response.get("created_at") or 0),
            "model": response.get("model"),
        }
        return [self._chunk({"role": "assistant", "content": ""})]

    def _delta(self, place: int, name: str, event: Json) -> list[Json]:
        text = write_arguments(event.get("delta") or "")
        if name in _FIELDS:
            logprobs = event.get("logprobs")
            return self._text(place, _FIELDS[name], text, logprobs)
        if name != "response.function_call_arguments":
            return []
        begins: list[Json] = []
        if place not in self._calls:
            item = self._whole.item(place)
            if not _is_named_call(item):
                return []  # its arguments come with its name
            begins = self._call(place, item)
        return [*begins, *self._arguments(place, text)]

    def _text(
        self, place: int, field: str, text: str, logprobs: list[Any] | None = None
    ) -> list[Json]:
        if not text:
            return []
        self._sent[place, field] = self._sent.get((place, field), "") + text
        return [self._chunk({field: text}, logprobs)]

    def _call(self, place: int, item: Json) -> list[Json]:
        if place in self._calls:
            return []
        number = self._calls[place] = len(self._calls)
        call: Json = {"index": number, "id": item.get("call_id"), "type": "function"}
        if item.get("type") == "custom_tool_call":
            call = {**call, "type": "custom", "custom": {"name": item.get("name"), "input": ""}}
        else:
            call["function"] = {"name": item.get("name"), "arguments": ""}
        return [self._chunk({"tool_calls": [call]})]

    def _arguments(self, place: int, text: str, field: str = "arguments") -> list[Json]:
        if not text:
            return []
        self._sent[place, field] = self._sent.get((place, field), "") + text
        inner = {field: text}
        call: Json = {"index": self._calls[place]}
        call |= {"custom": inner} if field == "input" else {"function": inner}
        return [self._chunk({"tool_calls": [call]})]

    def _rest(self, place: int, item: Json) -> list[Json]:
        """Return the chunks of what an item has and deltas did not bring."""
        kind = item.get("type")
        if kind in _CALLS and not item.get("name"):
            return []
        if kind in _CALLS:
            field = "input" if kind == "custom_tool_call" else "arguments"
            chunks = self._call(place, item)
            whole = write_arguments(item.get(field) or "")
            return chunks + self._arguments(place, self._unsent(place, field, whole), field)
        chunks: list[Json] = []
        whole = response_from_responses({"output": [item]})["choices"][0]["message"]
        for field in ("reasoning_content", "content", "refusal"):
            text = self._unsent(place, field, whole.get(field) or "")
            chunks += self._text(place, field, text)
        return chunks

    def _unsent(self, place: int, field: str, whole: str) -> str:
        """Return what follows the text sent so far; nothing if the two differ."""
        sent = self._sent.get((place, field), "")
        return whole[len(sent) :] if whole.startswith(sent) else ""

    def close(self) -> list[Json]:
        response = self._whole.result()
        finish = finish_of(response)
        if finish is None:
            return []  # truncated or failed
        end = self._chunk({})
        end["choices"][0]["finish_reason"] = finish
        if not self._usage:
            return [end]
        counted = usage_from_responses(response.get("usage"))
        return [end, {**self._head, "choices": [], "usage": counted}]

    def _chunk(self, delta: Json, logprobs: list[Any] | None = None) -> Json:
        found = {"content": logprobs} if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": found, "finish_reason": None}
        return {**self._head, "choices": [choice]}
