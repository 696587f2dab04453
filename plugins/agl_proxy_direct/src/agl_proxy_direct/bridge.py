r"""The tokens between an answer and the next one, proven by renderings of the chat template.

::

    kept    <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>...</think>Hello<|im_end|>
    bridge  \n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n

The template says what follows an answer. Two renderings with different placeholders in place of the
answer end alike: with the rest of the answer's turn and all that follows. The bridge is what comes
after the token that ended the answer. It is proven if the conversation that the agent sent ends in
the same way, and if the template renders what comes before the answer as if nothing followed.

Pure: the caller lets the server render, so template and tokenizer are those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from agl_core.genai import Json
from agl_proxy_direct.history import Fallback, KeptAnswer

__all__ = ["Renderings", "find_bridge", "to_render"]

_PLACEHOLDERS: Final = ("yes", "no")
"""No tokenizer makes their last letters one token, so what renderings have in common at the end
begins after them."""


class Renderings(NamedTuple):
    """Four conversations, or their tokens as the template renders them.

    Attributes:
        before: The messages before the answer, without the head of an answer at the end.
        first: The whole conversation with a placeholder for the answer.
        second: The same with another placeholder.
        sent: The whole conversation as the agent sent it.
    """

    before: list[Any]
    first: list[Any]
    second: list[Any]
    sent: list[Any]


def to_render(messages: Sequence[Json], index: int) -> Renderings:
    """Return the conversations to render.

    Args:
        messages: The messages of a chat request.
        index: Place of the answer whose tokens are kept.
    """
    # What answers say decides in many templates how they are rendered, for example whether there is
    # reasoning to cut off. Their tokens are kept, so a short text replaces each.
    before = [
        _with_text(message, "yes") if message.get("role") == "assistant" else message
        for message in messages[:index]
    ]
    after = list(messages[index + 1 :])
    first, second = (
        [*before, _with_text(messages[index], text, text), *after] for text in _PLACEHOLDERS
    )
    return Renderings(before, first, second, list(messages))


def _with_text(message: Json, text: str, argument: str | None = None) -> Json:
    """Return an answer with another text, without reasoning, and with another argument of calls."""
    made: Json = {"role": "assistant", "content": text}
    calls: list[Json] = message.get("tool_calls") or []
    if not calls:
        return made
    if not message.get("content"):
        made["content"] = message.get("content")
    if argument is not None:
        # The last text of the turn that is not the template's is in the last call.
        arguments = '{"value": "%s"}' % argument  # noqa: UP031 -- braces
        calls = [
            {**call, "function": {**call["function"], "arguments": arguments}} for call in calls
        ]
    return {**made, "tool_calls": calls}


def find_bridge(
    rendered: Renderings, answer: KeptAnswer, *, calls: bool, stops: bool
) -> list[int] | Fallback:
    """Return the tokens to put after the kept ones, or why they are not proven.

    Args:
        rendered: The tokens of what :func:`to_render` returns.
        answer: The kept answer.
        calls: Whether the answer has tool calls.
        stops: Whether a text of the agent's choice may have ended the answer.
    """
    before, first, second, sent = (cast("list[int]", tokens) for tokens in rendered)
    if first[: len(before)] != before or second[: len(before)] != before:
        return Fallback.REWRITTEN
    # The answer is after what comes before it, so the ends cannot overlap with that.
    tail = _common_end(first[len(before) :], second[len(before) :])
    ended = answer.finish_reason != "length"
    if not tail or len(tail) == len(first) - len(before):
        return Fallback.BRIDGE
    if calls:
        if not ended:
            return Fallback.UNFINISHED_CALL
        if answer.last not in tail:
            return Fallback.END_TOKEN
        tail = tail[tail.index(answer.last) :]
        bridge = tail[1:]
    elif tail[0] == answer.last:
        bridge = tail[1:]
    elif ended and not stops:
        return Fallback.END_TOKEN
    else:
        bridge = tail  # the answer was cut off, so the template ends its turn
    return bridge if sent[-len(tail) :] == tail else Fallback.BRIDGE


def _common_end(first: Sequence[int], second: Sequence[int]) -> list[int]:
    length = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        length += 1
    return list(first[len(first) - length :])
