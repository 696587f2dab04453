"""Assemblers of streams with typed events: Anthropic's Messages and OpenAI's Responses.

Formats: Anthropic API reference, "Streaming messages"; OpenAI API reference, "Responses streaming".
"""

from __future__ import annotations

from typing import Final

from agl_core.genai._wire import Json, loads
from agl_core.genai.streams._base import Assembler, error_of


class MessagesAssembler(Assembler):
    """Assembles Messages events to a ``message``."""

    def __init__(self) -> None:
        super().__init__()
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, list[str]] = {}

    def feed(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            self._delta(event["index"], event["delta"])
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "message_delta":
            self._message |= event["delta"]
            usage: Json = event.get("usage") or {}
            known: Json = self._message.get("usage") or {}
            counted = {key: value for key, value in usage.items() if value is not None}
            self._message["usage"] = known | counted
            self.finished = self._message.get("stop_reason") is not None
        elif kind == "message_stop":
            self.finished = True
        elif kind == "error":
            self.error = error_of(event) or "unknown error"

    def _delta(self, index: int, delta: Json) -> None:
        self.started = True
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
            return
        for field in ("text", "thinking", "signature"):
            if field in delta:
                block[field] = block.get(field, "") + delta[field]
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]

    def block(self, index: int) -> Json:
        """Return the content block received so far; empty if it has not begun."""
        return self._blocks.get(index, {})

    def result(self) -> Json:
        for index, pieces in self._inputs.items():
            text = "".join(pieces)
            try:
                self._blocks[index]["input"] = loads(text.encode()) if text else {}
            except ValueError:
                self._blocks[index]["input"] = {"partial_json": text}  # truncated
        content = [block for _, block in sorted(self._blocks.items())]
        return {"type": "message", "role": "assistant", **self._message, "content": content}


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
