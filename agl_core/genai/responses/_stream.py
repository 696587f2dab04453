"""Streams of OpenAI's Responses: assembly, and translation to and from chat.

Format: OpenAI API reference, "Responses streaming".
"""

from __future__ import annotations

from typing import Any, Final

from agl_core.genai._parts import as_list, first_choice
from agl_core.genai._streams import Assembler, StreamTranslator, error_of
from agl_core.genai._wire import Json
from agl_core.genai.chat._stream import ChatAssembler
from agl_core.genai.responses._response import (
    finish_of,
    output_items,
    response_head,
    response_to_responses,
    usage_from_responses,
)

__all__ = ["ChatToResponses", "ResponsesAssembler", "ResponsesToChat"]


_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesAssembler(Assembler):
    """Assembles Responses events to a ``response``."""

    def __init__(self) -> None:
        super().__init__()
        self._response: Json = {}
        self._items: dict[int, Json] = {}
        self._texts: dict[int, list[str]] = {}

    def feed(self, event: Json) -> None:
        kind = event.get("type", "")
        if kind.endswith(".delta"):
            self.started = True
            if kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
                self._texts.setdefault(event["output_index"], []).append(event["delta"])
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._items[event["output_index"]] = event["item"]
            if kind.endswith("done"):
                self._texts.pop(event["output_index"], None)
        elif kind in _LAST:
            self._response = event["response"]
            self.finished = True
            if kind == "response.failed":
                self.error = error_of(self._response) or "the response failed"
        elif kind == "error":
            self.error = error_of(event) or str(event.get("message") or "unknown error")
        elif "response" in event:
            self._response = event["response"]

    def result(self) -> Json:
        if self.finished:
            return self._response
        output: list[Json] = []
        for index, item in sorted(self._items.items()):
            text = "".join(self._texts.get(index, ()))
            if text and item.get("type") == "function_call":
                item = {**item, "arguments": text}
            elif text:
                item = {**item, "content": [{"type": "output_text", "text": text}]}
            output.append(item)
        return {**self._response, "object": "response", "output": output}


class ChatToResponses(StreamTranslator):
    """Translates the first choice of a chat stream to the events of a Responses stream.

    An item opens with its first content. All items are closed at the end, when their whole content
    is known; the protocol allows several open items.
    """

    def __init__(self, *, usage: bool = False) -> None:
        super().__init__(usage=usage)
        self._number = 0
        self._whole = ChatAssembler()
        self._head: Json = {}
        self._places: dict[Any, Json] = {}
        """``output_index`` and ``item_id`` of each open item."""

    def feed(self, event: Json) -> list[Json]:
        if event.get("error") is not None:
            told = {"message": error_of(event), "code": "server_error", "param": None}
            return [self._event("error", **told, error=event["error"])]
        first = {**event, "choices": [c for c in event.get("choices") or () if not c.get("index")]}
        self._whole.feed(first)
        events: list[Json] = []
        if not self._head:
            self._head = response_head(event, "in_progress")
            events.append(self._event("response.created", response=self._head))
            events.append(self._event("response.in_progress", response=self._head))
        for choice in first["choices"]:
            events += self._delta(choice.get("delta") or {}, choice.get("logprobs"))
        return events

    def _delta(self, delta: Json, logprobs: Json | None) -> list[Json]:
        events: list[Json] = []
        thoughts = delta.get("reasoning_content") or delta.get("reasoning")
        if thoughts:
            item: Json = {"type": "reasoning", "summary": [], "content": []}
            events += self._open("rs", f"rs_{self._head['id']}", item)
            events.append(self._delta_event("response.reasoning_text.delta", "rs", thoughts))
        for key, kind in (("content", "output_text"), ("refusal", "refusal")):
            if delta.get(key):
                events += self._open_text(kind)
                more: Json = {}
                if kind == "output_text":
                    more["logprobs"] = (logprobs or {}).get("content") or []
                name = f"response.{kind}.delta"
                events.append(self._delta_event(name, "msg", delta[key], content_index=0, **more))
        for call in as_list(delta.get("tool_calls")):
            number = call.get("index", 0)
            function: Json = call.get("function") or {}
            item = {
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.get("id"),
                "name": function.get("name"),
                "arguments": "",
            }
            events += self._open(number, f"fc_{self._head['id']}_{number}", item)
            if function.get("arguments"):
                name = "response.function_call_arguments.delta"
                events.append(self._delta_event(name, number, function["arguments"]))
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
        if events:
            part: Json = {"type": "refusal", "refusal": ""}
            if kind == "output_text":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            where = self._places["msg"]
            events.append(
                self._event("response.content_part.added", **where, content_index=0, part=part)
            )
        return events

    def _delta_event(self, name: str, key: Any, delta: str, **more: Any) -> Json:
        return self._event(name, **self._places[key], delta=delta, **more)

    def close(self) -> list[Json]:
        whole = self._whole.result()
        choice = first_choice(whole)
        if choice.get("finish_reason") is None:
            return []  # truncated: the stream must not look complete
        events: list[Json] = []
        for item in output_items(whole, choice):
            events += self._close_item(item)
        response = response_to_responses({**whole, "created": self._head.get("created_at")})
        in_order = sorted(response["output"], key=self._position)
        name = f"response.{response['status']}"
        return [*events, self._event(name, response={**response, "output": in_order})]

    def _position(self, item: Json) -> int:
        key = item["id"]
        places = {place["item_id"]: place["output_index"] for place in self._places.values()}
        return places.get(key, len(places))

    def _close_item(self, item: Json) -> list[Json]:
        where = next((p for p in self._places.values() if p["item_id"] == item["id"]), None)
        if where is None:  # an empty response, whose item never opened
            events = self._open("msg", item["id"], {**item, "status": "in_progress"})
            done = self._event("response.output_item.done", output_index=0, item=item)
            return [*events, done]
        events = [self._event(*named, **where, **fields) for *named, fields in _done_events(item)]
        index = where["output_index"]
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _event(self, kind: str, **fields: Any) -> Json:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def _done_events(item: Json) -> list[tuple[str, Json]]:
    """Return the events that close the parts of an item, and their fields."""
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


class ResponsesToChat(StreamTranslator):
    """Translates the events of a Responses stream to chunks of a chat stream."""

    def __init__(self, *, usage: bool = False) -> None:
        super().__init__(usage=usage)
        self._head: Json = {}
        self._calls: dict[int, int] = {}
        """Numbers of tool calls by the index of their item."""
        self._whole = ResponsesAssembler()

    def feed(self, event: Json) -> list[Json]:
        self._whole.feed(event)
        kind = event.get("type")
        if kind == "response.created":
            response = event["response"]
            self._head = {
                "id": response.get("id"),
                "object": "chat.completion.chunk",
                "created": int(response.get("created_at") or 0),
                "model": response.get("model"),
            }
            return [self._chunk({"role": "assistant", "content": ""})]
        if kind == "response.output_text.delta":
            logprobs = event.get("logprobs")
            return [self._chunk({"content": event["delta"]}, logprobs)]
        if kind == "response.refusal.delta":
            return [self._chunk({"refusal": event["delta"]})]
        if kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            return [self._chunk({"reasoning_content": event["delta"]})]
        if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            item = event["item"]
            number = self._calls[event["output_index"]] = len(self._calls)
            function = {"name": item.get("name"), "arguments": ""}
            call = {"index": number, "id": item.get("call_id"), "type": "function"}
            return [self._chunk({"tool_calls": [{**call, "function": function}]})]
        if kind == "response.function_call_arguments.delta":
            number = self._calls[event["output_index"]]
            call = {"index": number, "function": {"arguments": event["delta"]}}
            return [self._chunk({"tool_calls": [call]})]
        if kind in ("error", "response.failed"):
            return [{"error": {"message": self._whole.error, "type": "server_error"}}]
        return []

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
