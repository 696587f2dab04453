"""Streams of Anthropic's Messages: assembly, and translation to and from chat.

Format: Anthropic API reference, "Streaming messages".
"""

from __future__ import annotations

import time
from typing import Any, Final

from agl_core.genai._parts import (
    answer_text,
    calls_in,
    copy_keys,
    delta_of,
    finish_reason_in,
    is_signed,
    object_at,
    objects_in,
    write_arguments,
)
from agl_core.genai._streams import Assembler, StreamTranslator, error_of, failure_of
from agl_core.genai._tool_calls import Piece, ToolCallPieces
from agl_core.genai._wire import Json, loads
from agl_core.genai.messages._response import (
    finish_reason_of,
    stop_of,
    usage_from_messages,
    usage_to_messages,
)

__all__ = ["ChatToMessages", "MessagesAssembler", "MessagesToChat"]

_COMPACTION: Final = {name: name for name in ("content", "encrypted_content")}


class MessagesAssembler(Assembler):
    """Assembles Messages events to a ``message``.

    The input of a tool call that is not a JSON object, such as a truncated one, stays text.

    Attributes:
        place: Place of the block that the last event belongs to. It is the block's ``index``,
            unless the server gives none or gives one to several blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = 0
        self._by_index: dict[int, int] = {}
        """Place of the last block by its ``index``."""
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, list[str]] = {}

    def feed(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            self.place = self._place_of(event)
            self._delta(self.place, object_at(event, "delta"))
        elif kind == "content_block_start":
            self.place = self._begin(event.get("index"))
            self._blocks[self.place] = dict(object_at(event, "content_block"))
        elif kind == "content_block_stop":
            self.place = self._place_of(event)
        elif kind == "message_start":
            self._message = dict(object_at(event, "message"))
        elif kind == "message_delta":
            self._message |= object_at(event, "delta")
            known = object_at(self._message, "usage")
            usage = object_at(event, "usage")
            counted = {key: value for key, value in usage.items() if value is not None}
            self._message["usage"] = known | counted
            self.finished = bool(self._message.get("stop_reason"))
        elif kind == "message_stop":
            self.finished = True
        elif kind == "error" or (kind is None and error_of(event)):
            self.error = error_of(event) or "unknown error"

    def _begin(self, index: Any) -> int:
        """Return the place of a new block."""
        place = index
        if not isinstance(index, int) or index in self._blocks:
            place = max(self._blocks, default=-1) + 1
        if isinstance(index, int):
            self._by_index[index] = place
        return place

    def _place_of(self, event: Json) -> int:
        """Return the place of the block that an event belongs to; that of the last without one."""
        index = event.get("index")
        if isinstance(index, int):
            return self._by_index.get(index, index)
        return max(self._blocks, default=0)

    def _delta(self, index: int, delta: Json) -> None:
        self.started = True
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(_text(delta.get("partial_json")))
            return
        for field in ("text", "thinking", "signature"):
            if isinstance(delta.get(field), str):
                block[field] = (block.get(field) or "") + delta[field]
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        if kind == "compaction_delta":  # it comes whole
            block |= copy_keys(delta, _COMPACTION)

    def block(self, place: int) -> Json:
        """Return the content block received so far; empty if it has not begun."""
        return self._blocks.get(place, {})

    def unstreamed(self) -> list[Json]:
        """Return the blocks of a message that came whole with its first event."""
        return [] if self._blocks else objects_in(self._message.get("content"))

    def result(self) -> Json:
        for index, pieces in self._inputs.items():
            text = "".join(pieces)
            if not text:
                continue  # the whole input came with the start of the block
            try:
                self._blocks[index]["input"] = loads(text.encode("utf-8", "surrogatepass"))
            except ValueError:
                self._blocks[index]["input"] = text
        content = self.unstreamed() or [block for _, block in sorted(self._blocks.items())]
        return {"type": "message", "role": "assistant", **self._message, "content": content}


def _text(value: Any) -> str:
    return "" if value is None else write_arguments(value)


class ChatToMessages(StreamTranslator):
    """Translates the first choice of a chat stream to the events of a Messages stream.

    Messages has one open content block at a time, while chat may interleave kinds of content. So a
    block ends where another kind of content begins. A piece of a tool call that comes after the end
    of its block keeps the block's index, by which clients put pieces together.

    Args:
        request: The agent's request of Messages.
    """

    def __init__(self, request: Json | None = None) -> None:
        super().__init__()
        self._request = request
        self._begun = False
        self._head: Json = {}
        self._index = -1
        self._open: Any = None
        """Kind of the open block: ``text``, ``thinking``, or the number of a tool call."""
        self._pieces = ToolCallPieces()
        self._calls: dict[int, int] = {}
        """Index of the block by the number of its tool call."""
        self._choice: Json = {}
        self._counted: Json = {}

    def feed(self, event: Json) -> list[Json]:
        error = error_of(event)
        if error is not None:
            return [_error_event(error)]
        self._counted = object_at(event, "usage") or self._counted
        if not self._begun:
            self._head |= {key: value for key in ("id", "model") if (value := event.get(key))}
        events: list[Json] = []
        for choice in objects_in(event.get("choices")):
            if choice.get("index"):
                continue
            if not self._begun:
                # Not before the first choice: Azure's first chunk has no id.
                self._begun = True
                events.append(_message_start({**event, **self._head}))
            events += self._delta(delta_of(choice))
            failure = failure_of(choice)
            if failure is not None:
                events.append(_error_event(failure))
            elif finish_reason_in(choice) is not None:
                self._choice = choice
        return events

    def _delta(self, delta: Json) -> list[Json]:
        events: list[Json] = []
        text, thoughts = answer_text(delta)
        if thoughts:
            events += self._open_block(
                "thinking", {"type": "thinking", "thinking": "", "signature": ""}
            )
            events.append(self._delta_event({"type": "thinking_delta", "thinking": thoughts}))
        for block in objects_in(delta.get("thinking_blocks")):
            if is_signed(block):
                events += self._sign(block)
        text = text or delta.get("refusal")
        if text:
            events += self._open_block("text", {"type": "text", "text": ""})
            events.append(self._delta_event({"type": "text_delta", "text": text}))
        for call in calls_in(delta):
            for piece in self._pieces.feed(call):
                events += self._tool_call(piece)
        return events

    def _tool_call(self, piece: Piece) -> list[Json]:
        events: list[Json] = []
        if piece.begins:
            call_id = piece.id or f"toolu_{self._head.get('id') or 'call'}_{piece.place}"
            block: Json = {"type": "tool_use", "id": call_id, "name": piece.name, "input": {}}
            events += self._open_block(piece.place, block)
            self._calls[piece.place] = self._index
        if piece.arguments:
            delta = {"type": "input_json_delta", "partial_json": piece.arguments}
            events.append(self._delta_event(delta, self._calls[piece.place]))
        return events

    def _sign(self, block: Json) -> list[Json]:
        """Return the events of a signed block; its text may already have been streamed."""
        if block["type"] == "redacted_thinking":
            return [*self._open_block("redacted", block), *self._close_block()]
        events: list[Json] = []
        if self._open != "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            events += self._open_block("thinking", empty)
            thoughts = block.get("thinking") or ""
            events.append(self._delta_event({"type": "thinking_delta", "thinking": thoughts}))
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return [*events, self._delta_event(signature), *self._close_block()]

    def _open_block(self, kind: Any, block: Json) -> list[Json]:
        """Return the events that open a block of this kind, unless one is open."""
        if self._open == kind:
            return []
        events = self._close_block()
        self._index += 1
        self._open = kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*events, start]

    def _delta_event(self, delta: Json, index: int | None = None) -> Json:
        index = self._index if index is None else index
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _close_block(self) -> list[Json]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def end(self) -> None:
        if self._begun and not self._choice:
            self._choice = {"finish_reason": "stop"}

    def close(self) -> list[Json]:
        if not self._choice:
            return []  # truncated: the stream must not look complete
        nameless = [event for piece in self._pieces.close() for event in self._tool_call(piece)]
        return [
            *nameless,
            *self._close_block(),
            {
                "type": "message_delta",
                "delta": stop_of(self._choice, called=bool(self._calls), request=self._request),
                "usage": usage_to_messages(self._counted),
            },
            {"type": "message_stop"},
        ]


def _error_event(message: str) -> Json:
    return {"type": "error", "error": {"type": "api_error", "message": message}}


def _message_start(chunk: Json) -> Json:
    message: Json = {
        "id": chunk.get("id"),
        "type": "message",
        "role": "assistant",
        "model": chunk.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_to_messages(object_at(chunk, "usage")),
    }
    return {"type": "message_start", "message": message}


class MessagesToChat(StreamTranslator):
    """Translates the events of a Messages stream to chunks of a chat stream."""

    def __init__(self, *, usage: bool = False) -> None:
        super().__init__(usage=usage)
        self._head: Json = {}
        self._calls: dict[int, int] = {}
        """Numbers of tool calls by the place of their block."""
        self._silent: set[int] = set()
        """Blocks of tool calls without arguments so far."""
        self._whole = MessagesAssembler()

    def feed(self, event: Json) -> list[Json]:
        self._whole.feed(event)
        kind = event.get("type")
        if kind == "message_start":
            message = object_at(event, "message")
            self._head = {
                "id": message.get("id"),
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": message.get("model"),
            }
            return [self._chunk({"role": "assistant", "content": ""})]
        place = self._whole.place
        if kind == "content_block_start":
            return self._start(place, object_at(event, "content_block"))
        if kind == "content_block_delta":
            return self._delta(place, object_at(event, "delta"))
        if kind == "content_block_stop":
            return self._stop(place, self._whole.block(place))
        if kind == "error" or (kind is None and self._whole.error is not None):
            return [{"error": event.get("error") or {"message": "unknown error"}}]
        return []

    def _start(self, place: int, block: Json) -> list[Json]:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            return [self._chunk({"content": block["text"]})]
        if kind == "thinking" and block.get("thinking"):
            return [self._chunk({"reasoning_content": block["thinking"]})]
        if kind != "tool_use":
            return []
        number = self._calls[place] = len(self._calls)
        self._silent.add(place)
        function = {"name": block.get("name"), "arguments": ""}
        call = {"index": number, "id": block.get("id"), "type": "function", "function": function}
        return [self._chunk({"tool_calls": [call]})]

    def _stop(self, place: int, block: Json) -> list[Json]:
        if place in self._silent:  # the whole input may have come with the start
            given = write_arguments(block.get("input"))
            return self._delta(place, {"type": "input_json_delta", "partial_json": given})
        return [self._chunk({"thinking_blocks": [dict(block)]})] if is_signed(block) else []

    def _delta(self, place: int, delta: Json) -> list[Json]:
        kind = delta.get("type")
        if kind == "text_delta" and delta.get("text"):
            return [self._chunk({"content": delta["text"]})]
        if kind == "thinking_delta" and delta.get("thinking"):
            return [self._chunk({"reasoning_content": delta["thinking"]})]
        if kind == "input_json_delta" and place in self._calls and delta.get("partial_json"):
            self._silent.discard(place)
            function = {"arguments": _text(delta["partial_json"])}
            call = {"index": self._calls[place], "function": function}
            return [self._chunk({"tool_calls": [call]})]
        return []

    def close(self) -> list[Json]:
        message = self._whole.result()
        if not message.get("stop_reason"):
            return []  # truncated
        rest: list[Json] = []
        for place, block in enumerate(self._whole.unstreamed()):
            rest += self._start(place, block) + self._stop(place, block)
        for place in sorted(self._silent):
            rest += self._stop(place, self._whole.block(place))
        end = self._chunk({}, finish_reason_of(message))
        if not self._usage:
            return [*rest, end]
        counted = usage_from_messages(object_at(message, "usage"))
        return [*rest, end, {**self._head, "choices": [], "usage": counted}]

    def _chunk(self, delta: Json, end: Json | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head, "choices": [{**choice, **(end or {})}]}
