"""Messages to prompt tokens, and sampled tokens to text, reasoning and tool calls. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "THINK",
    "Answer",
    "Detokenizer",
    "GrowingText",
    "Regions",
    "parse_answer",
    "render_chat",
]

_CALL_BEGINS: Final = "<tool_call>"
THINK: Final = ("<think>", "</think>")
"""The marks around reasoning, as Qwen3, DeepSeek R1 and their relatives write them."""
_PART: Final = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers write for a part of a character."""
_LAST: Final = 64
"""Tokens that are decoded together: a few microseconds, and seldom a search for a place to cut."""
_OPEN: Final = 16
"""Last tokens whose text may still change; a character has at most four tokens."""
_CONTEXT: Final = 8
"""Tokens before the others that show whether a text begins with a space."""
_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


def render_chat(
    tokenizer: Any,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = True,
    **options: Any,
) -> list[int]:
    """Return the token ids of the prompt for a conversation.

    Args:
        tokenizer: Tokenizer with a chat template.
        messages: Messages in OpenAI's form, with text as content.
        tools: Tools in OpenAI's form.
        add_generation_prompt: Whether the prompt ends with the head of an answer.
        **options: Further variables of the template.

    Raises:
        ValueError: The template cannot render the messages, or a message has content that is not
            text.
    """
    try:
        plain = [_plain(message) for message in messages]
        text = tokenizer.apply_chat_template(
            plain,
            tools=tools or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **options,
        )
    except ValueError:
        raise
    except Exception as error:  # a template may raise anything
        raise ValueError(f"the chat template cannot render these messages: {error}") from error
    return tokenizer.encode(text, add_special_tokens=False)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the form that templates expect: text content, arguments as mappings."""
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise ValueError("this server takes text only")
        content = "".join(part["text"] for part in content)
    plain = {**message, "content": content or ""}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise ValueError(f"the arguments of a tool call are not valid JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer, parsed.

    Attributes:
        content: Text without reasoning and tool calls; None if it consists of tool calls.
        tool_calls: ``{"name", "arguments"}`` of each, with the arguments as JSON text.
        reasoning: Text of the reasoning; None if there is none.
        visible: Length of the sampled text without the tool calls at its end, in characters.
    """

    content: str | None
    tool_calls: Sequence[dict[str, str]] = ()
    reasoning: str | None = None
    visible: int = 0


@dataclass(frozen=True, slots=True)
class Regions:
    """Where reasoning and content are in a sampled text, as character positions.

    Attributes:
        begin: First character of the reasoning.
        end: The one after its last; ``begin`` or less if there is no reasoning.
        content: First character of the content.
    """

    begin: int = 0
    end: int = 0
    content: int = 0

    @classmethod
    def of(cls, text: str, *, opened: bool) -> Regions:
        """Return the regions of an answer, or of its beginning.

        Args:
            text: The sampled text.
            opened: Whether the prompt ends with the mark that begins reasoning.
        """
        if not opened and not text.startswith(THINK[0]):
            return cls()
        begin = 0 if opened else len(THINK[0])
        end = text.find(THINK[1], begin)
        return cls(begin, len(text), len(text)) if end < 0 else cls(begin, end, end + len(THINK[1]))

    def reasoning_in(self, text: str, start: int = 0, stop: int | None = None) -> str:
        """Return the reasoning between two positions of the text."""
        stop = len(text) if stop is None else stop
        return text[max(start, self.begin) : min(stop, self.end)]

    def content_in(self, text: str, start: int = 0, stop: int | None = None) -> str:
        """Return the content between two positions of the text."""
        return text[max(start, self.content) : stop]


def parse_answer(text: str, *, tools: bool, regions: Regions | None = None) -> Answer:
    """Find reasoning, and tool calls in the form of the Hermes models.

    ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, once per call. If one of them is
    malformed, the whole content stays text, so that the agent sees what its model sampled.

    Args:
        text: The sampled text.
        tools: Whether the request offered tools.
        regions: Where the reasoning is; None if there is none.
    """
    regions = regions or Regions()
    content, reasoning = regions.content_in(text), regions.reasoning_in(text) or None
    plain = Answer(content, (), reasoning, len(text))
    begin = content.find(_CALL_BEGINS) if tools else -1
    if begin < 0:
        return plain
    calls: list[dict[str, str]] = []
    for body in _CALL.findall(content[begin:]):
        try:
            call = json.loads(body)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            return plain
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return plain
        calls.append({"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)})
    visible = len(text) - len(content) + begin
    return Answer(content[:begin] or None, calls, reasoning, visible)


class GrowingText:
    """The text of tokens that become more: what was decoded long ago is not decoded again.

    A token's text depends on those beside it: a character may have several tokens, and some
    tokenizers drop the first space. So the last tokens are decoded together, and those before them
    leave only at a place where this changes nothing.

    Args:
        tokenizer: The tokens' tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._read = 0
        # The text is that of the tokens that have left, and of the last tokens without their
        # first characters, which were the text of the tokens that have left, too.
        self._before = ""
        self._last: list[int] = []
        self._skip = 0
        self._limit = _LAST
        self._text = ""

    def of(self, ids: Sequence[int]) -> str:
        """Return the text of all tokens: those of the last call, and further ones."""
        if len(ids) > self._read:
            if len(self._last) >= self._limit:
                self._shorten()
            self._last += ids[self._read :]
            self._read = len(ids)
            self._text = self._before + self._decode(self._last)[self._skip :]
        return self._text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _shorten(self) -> None:
        """Let tokens leave, up to the last place between two tokens of whole characters."""
        last = self._last
        for end in range(len(last) - _OPEN, 2 * _CONTEXT, -1):
            if any(_PART in self._decode([token]) for token in last[end - 1 : end + 1]):
                continue
            rest = last[end - _CONTEXT :]
            head, context = self._decode(last[:end]), self._decode(rest[:_CONTEXT])
            both = self._before + head[self._skip :] + self._decode(rest)[len(context) :]
            if context and both == self._text:
                self._before += head[self._skip :]
                self._last, self._skip = rest, len(context)
                self._limit = _LAST
                return
        self._limit *= 2  # a long run of parts of characters


class Detokenizer:
    """The text of one sequence as it grows. Its methods take all tokens so far.

    Args:
        tokenizer: The model's tokenizer.
        stop: Texts that end the sequence. The stop text and everything after it is cut off.
        hold: A marker. Text from the marker on is given out only when the sequence has ended.
        whole: Marks that are given out whole.

    Attributes:
        given: How many characters were given out.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str] = (),
        hold: str | None = None,
        whole: Sequence[str] = (),
    ) -> None:
        self._growing = GrowingText(tokenizer)
        self._stop = tuple(stop)
        self._hold = hold
        self._whole = tuple(whole)
        self.given = 0

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of all tokens, up to the first stop text."""
        text = self._growing.of(ids)
        ends = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    def is_stop(self, ids: Sequence[int]) -> bool:
        """Return whether the text contains a stop text."""
        text = self._growing.of(ids)
        return any(stop in text for stop in self._stop)

    def advance(self, ids: Sequence[int]) -> str:
        """Return the new text: whole characters only, and no part of a possible stop text."""
        text = self.text(ids)
        end = len(text.rstrip(_PART))
        markers = (*self._stop, *self._whole, *([self._hold] if self._hold else ()))
        if self._hold and (at := text.find(self._hold)) >= 0:
            end = min(end, at)
        held = max((_overlap(text, marker) for marker in markers), default=0)
        end = min(end, len(text) - held)
        new = text[self.given : end]
        self.given = max(self.given, end)
        return new


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest suffix of the text that is a prefix of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


HOLD: Final = _CALL_BEGINS
"""A stream holds text from this marker on until the tool calls are known."""
