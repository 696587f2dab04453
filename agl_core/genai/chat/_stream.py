"""Assembly of chat streams, and what text completion streams share with them.

Format: OpenAI API reference, "Chat Completions streaming"; vLLM's ``return_token_ids``: the prompt
once (chat: on the first chunk; completions: on the choice), ``token_ids`` on each choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast

from agl_core.genai._parts import (
    answer_text,
    delta_of,
    finish_reason_in,
    function_of,
    object_at,
    objects_in,
)
from agl_core.genai._streams import Assembler, error_of, failure_of
from agl_core.genai._tool_calls import ToolCallPlaces
from agl_core.genai._wire import Json

__all__ = ["ChatAssembler", "OpenAIAssembler", "PartialChoice"]

_OF_A_CALL: Final = frozenset({"custom", "function", "id", "index", "type"})
"""Keys of a tool call that the protocol defines; servers add others."""
_OF_AN_END: Final = ("native_finish_reason", "stop_reason", "matched_stop")
"""Keys that servers put beside the finish reason: OpenRouter, vLLM and SGLang."""
_NOT_HEAD: Final = frozenset({"choices", "usage", "object", "prompt_token_ids"})
"""Keys of an event that are assembled separately, so they are not taken from the first event."""
_IN_PIECES: Final = frozenset({"data", "transcript"})
"""Texts in the object of an audio answer that come in pieces (OpenAI API reference, "Audio")."""


@dataclass(slots=True)
class PartialChoice:
    """One choice, as received so far."""

    text: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    tool_calls: list[Json] = field(default_factory=list[Json])
    places: ToolCallPlaces = field(default_factory=ToolCallPlaces)
    thinking_blocks: list[Json] = field(default_factory=list[Json])
    token_ids: list[int] | None = None
    logprobs: Json | None = None
    finish_reason: str | None = None
    message: Json = field(default_factory=dict[str, Any])
    """Other values of the message, such as annotations."""
    other: Json = field(default_factory=dict[str, Any])
    """Other values of the choice."""

    def add_shared(self, choice: Json) -> None:
        """Add the fields that chat and completions share."""
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            if self.token_ids is None:
                self.token_ids = []
            self.token_ids += ids
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            if self.logprobs is None:
                self.logprobs = {}
            for key, value in cast("Json", logprobs).items():
                known: Any = self.logprobs.get(key)
                if type(known) is type(value) is list:  # nearly all chunks
                    known += value
                else:
                    _extend(self.logprobs, key, value)
        reason = finish_reason_in(choice)
        if reason is not None:
            self.finish_reason = reason
            self.other |= {key: choice[key] for key in _OF_AN_END if key in choice}

    def shared(self) -> Json:
        found: Json = {**self.other, "finish_reason": self.finish_reason, "logprobs": self.logprobs}
        if self.token_ids is not None:
            found["token_ids"] = self.token_ids
        return found


def _extend(known: Json, key: str, value: Any) -> None:
    """Add a value under a key: a list extends a list and replaces other values.

    Objects are joined. Of other values the first one that is not null stays.
    """
    before = known.get(key)
    if isinstance(value, list) and isinstance(before, list):
        cast("list[Any]", before).extend(cast("list[Any]", value))
    elif isinstance(value, dict) and isinstance(before, dict):
        _join(cast("Json", before), cast("Json", value))
    elif isinstance(value, list):
        known[key] = [*cast("list[Any]", value)]
    elif before is None:
        known[key] = dict(cast("Json", value)) if isinstance(value, dict) else value


def _join(known: Json, piece: Json) -> None:
    """Add a piece of an object."""
    for key, value in piece.items():
        if key in _IN_PIECES and isinstance(value, str):
            known[key] = (known.get(key) or "") + value
        else:
            _extend(known, key, value)


def _whole(index: Any) -> int:
    """Return the index of a choice that is no int: some servers write ``1.0`` or ``"1"``."""
    try:
        return int(float(index))
    except (OverflowError, TypeError, ValueError):
        return 0


class OpenAIAssembler(Assembler):
    """Base of the assemblers of chat and completions: a head, choices, and usage at the end.

    The head is what the first event says about the response, such as its id and model.
    """

    object_name = ""

    def __init__(self, choices: int = 1) -> None:
        super().__init__()
        self._expected = choices
        self._head: Json = {}
        self._named = False
        """Whether the head has the response's id and model."""
        self._usage: Json | None = None
        self._choices: dict[int, PartialChoice] = {}

    def feed(self, event: Json) -> None:
        if ("error" in event or event.get("object") == "error") and (error := error_of(event)):
            self.error = error
            return
        if not self._head:
            self._head = {key: value for key, value in event.items() if key not in _NOT_HEAD}
        elif not self._named:
            # Azure's first chunk has the results of content filters, and no id or model.
            for key in ("id", "model", "created"):
                self._head[key] = self._head.get(key) or event.get(key)
            self._named = bool(self._head["id"] and self._head["model"])
        if event.get("prompt_token_ids") is not None:
            self._head["prompt_token_ids"] = event["prompt_token_ids"]
        if event.get("usage") is not None:
            self._usage = event["usage"]
        choices = event.get("choices")
        for choice in cast("list[Any]", choices) if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            choice = cast("Json", choice)
            index = choice.get("index") or 0
            if type(index) is not int:
                index = _whole(index)
            known = self._choices.get(index)
            if known is None:
                known = self._choices[index] = PartialChoice()
            self._add(known, choice)
            known.add_shared(choice)
            if known.finish_reason is not None:
                self.error = self.error or failure_of(choice)
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
        for key, value in delta_of(choice).items():
            if value is None or key == "role":
                continue
            if key == "tool_calls":
                for call in objects_in(value):
                    self.started = True
                    _add_tool_call(known, call)
            elif key == "function_call":
                self.started = True
                _add_tool_call(known, {"type": key, "function": value})
            elif isinstance(value, str):
                self.started = self.started or value != ""
                known.text.setdefault(key, []).append(value)
            elif key == "content":
                text, thoughts = answer_text({key: value})
                self.started = self.started or bool(text or thoughts)
                known.text.setdefault(key, []).append(text)
                if thoughts:
                    known.text.setdefault("reasoning_content", []).append(thoughts)
            elif key == "thinking_blocks":
                for block in objects_in(value):
                    _add_thinking(known.thinking_blocks, block)
            else:
                _extend(known.message, key, value)

    def _choice(self, known: PartialChoice) -> Json:
        message: Json = {"role": "assistant", "content": None, **known.message}
        message |= {key: "".join(pieces) for key, pieces in known.text.items()}
        if known.thinking_blocks:
            message["thinking_blocks"] = known.thinking_blocks
        if known.tool_calls:
            message["content"] = message["content"] or None
            message |= _calls(known.tool_calls)
        return {"message": message, **known.shared()}


def _calls(calls: list[Json]) -> Json:
    """Return the calls of a message. One of the form before tools is there in both forms."""
    found: Json = {"tool_calls": [_call(call) for call in calls]}
    if [call["type"] for call in calls] == ["function_call"]:
        found["function_call"] = calls[0]["function"]
    return found


def _call(call: Json) -> Json:
    if call["type"] != "custom":
        return {**call, "type": "function"}
    name, text = function_of(call)
    other = {key: value for key, value in call.items() if key != "function"}
    return {**other, "custom": {"name": name or "", "input": text}}


def _add_tool_call(known: PartialChoice, piece: Json) -> None:
    place = known.places.place(piece)
    if place == len(known.tool_calls):
        empty = {"name": "", "arguments": ""}
        kind = "custom" if "custom" in piece else piece.get("type")
        known.tool_calls.append({"id": None, "type": kind, "function": empty})
    call = known.tool_calls[place]
    call["id"] = call["id"] or piece.get("id") or None
    name, arguments = function_of(piece)
    function = object_at(call, "function")
    function["name"] = name or function["name"]
    function["arguments"] += arguments
    for key in piece.keys() - _OF_A_CALL:  # such as Gemini's thought signature
        if call.get(key) is None:
            call[key] = piece[key]


def _add_thinking(blocks: list[Json], block: Json) -> None:
    """Add a block of reasoning, or a piece of one: a block ends with its signature."""
    last = blocks[-1] if blocks else {}
    goes_on = "thinking" in block or "signature" in block
    if goes_on and "thinking" in last and not last.get("signature"):
        last["thinking"] = (last["thinking"] or "") + (block.get("thinking") or "")
        last["signature"] = block.get("signature")
    else:
        blocks.append(dict(block))
