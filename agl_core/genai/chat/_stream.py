"""Assembly of chat streams, and what text completion streams share with them.

Format: OpenAI API reference, "Chat Completions streaming"; vLLM's ``return_token_ids``: the prompt
once (chat: on the first chunk; completions: on the choice), ``token_ids`` on each choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from agl_core.genai._streams import Assembler, error_of
from agl_core.genai._wire import Json

__all__ = ["ChatAssembler", "OpenAIAssembler", "PartialChoice"]


@dataclass(slots=True)
class PartialChoice:
    """One choice, as received so far."""

    text: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    tool_calls: dict[int, Json] = field(default_factory=dict[int, Json])
    thinking_blocks: list[Json] = field(default_factory=list[Json])
    token_ids: list[int] | None = None
    logprobs: Json | None = None
    finish_reason: str | None = None
    other: Json = field(default_factory=Json)

    def add_shared(self, choice: Json) -> None:
        """Add the fields that chat and completions share."""
        ids = choice.get("token_ids")
        if ids is not None:
            if self.token_ids is None:
                self.token_ids = []
            self.token_ids += ids
        logprobs = choice.get("logprobs")
        if logprobs is not None:
            if self.logprobs is None:
                self.logprobs = {}
            for key, value in logprobs.items():
                if isinstance(value, list):
                    self.logprobs.setdefault(key, []).extend(value)
                else:
                    self.logprobs.setdefault(key, value)
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]
            if "stop_reason" in choice:
                self.other["stop_reason"] = choice["stop_reason"]

    def shared(self) -> Json:
        found: Json = {**self.other, "finish_reason": self.finish_reason, "logprobs": self.logprobs}
        if self.token_ids is not None:
            found["token_ids"] = self.token_ids
        return found


class OpenAIAssembler(Assembler):
    """Base of both: a head, choices, and usage at the end."""

    object_name = ""

    def __init__(self, choices: int = 1) -> None:
        super().__init__()
        self._expected = choices
        self._head: Json = {}
        self._usage: Json | None = None
        self._choices: dict[int, PartialChoice] = {}

    def feed(self, event: Json) -> None:
        if "error" in event and (error := error_of(event)) is not None:
            self.error = error
            return
        if not self._head:
            self._head = {
                key: value
                for key, value in event.items()
                if key not in ("choices", "usage", "object", "prompt_token_ids")
            }
        if event.get("prompt_token_ids") is not None:
            self._head["prompt_token_ids"] = event["prompt_token_ids"]
        if event.get("usage") is not None:
            self._usage = event["usage"]
        for choice in event.get("choices") or ():
            index = choice.get("index", 0)
            known = self._choices.get(index)
            if known is None:
                known = self._choices[index] = PartialChoice()
            self._add(known, choice)
            known.add_shared(choice)
            if known.finish_reason is not None:
                done = sum(c.finish_reason is not None for c in self._choices.values())
                self.finished = done >= self._expected

    def _add(self, known: PartialChoice, choice: Json) -> None:
        raise NotImplementedError

    def _choice(self, known: PartialChoice) -> Json:
        raise NotImplementedError

    def result(self) -> Json:
        return {
            **self._head,
            "object": self.object_name,
            "choices": [
                {"index": index, **self._choice(choice)}
                for index, choice in sorted(self._choices.items())
            ],
            "usage": self._usage,
        }


class ChatAssembler(OpenAIAssembler):
    """Assembles ``chat.completion.chunk`` events to a ``chat.completion``."""

    object_name = "chat.completion"

    def _add(self, known: PartialChoice, choice: Json) -> None:
        delta: Json = choice.get("delta") or {}
        for key, value in delta.items():
            if value is None or key == "role":
                continue
            if key == "tool_calls":
                self.started = True
                for call in cast("list[Json]", value):
                    _add_tool_call(known.tool_calls, call)
            elif isinstance(value, str):
                self.started = self.started or value != ""
                known.text.setdefault(key, []).append(value)
            elif key == "thinking_blocks":
                known.thinking_blocks += value
            else:
                known.other[key] = value

    def _choice(self, known: PartialChoice) -> Json:
        message: Json = {"role": "assistant", "content": None}
        message |= {key: "".join(pieces) for key, pieces in known.text.items()}
        if known.thinking_blocks:
            message["thinking_blocks"] = known.thinking_blocks
        if known.tool_calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [call for _, call in sorted(known.tool_calls.items())]
        return {"message": message, **known.shared()}


def _add_tool_call(calls: dict[int, Json], delta: Json) -> None:
    index = delta.get("index", len(calls))
    call = calls.get(index)
    if call is None:
        empty = {"name": "", "arguments": ""}
        call = calls[index] = {"id": None, "type": "function", "function": empty}
    call["id"] = delta.get("id") or call["id"]
    function: Json = delta.get("function") or {}
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""
