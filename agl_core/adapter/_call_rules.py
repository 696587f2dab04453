"""Rules that recognise auxiliary calls: titles, topic checks and the like, beside an agent's task.

A plugin provides a rule by the hook ``agl_call_rule``. A rule only proposes: adapters keep a call
that the conversation goes on with, and never leave out all calls of an attempt, whatever a rule
says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from agl_core.types import Span

__all__ = ["CallRule", "RecordedCall"]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A model call as a rule sees it.

    Attributes:
        span: The span that recorded it.
        messages: What was sent, in OpenAI's chat format with the instructions first; empty if it
            was not captured.
        answer: The answer's text; empty if it was not captured.
        tools: How many tools the model was offered.
        max_tokens: Limit of tokens of the answer; None if the request had none.
    """

    span: Span
    messages: Sequence[Mapping[str, Any]] = ()
    answer: str = ""
    tools: int = 0
    max_tokens: int | None = None

    @property
    def instructions(self) -> str:
        """The text of the system and developer messages."""
        told = [one for one in self.messages if one.get("role") in ("system", "developer")]
        return "\n".join(_text(one.get("content")) for one in told)

    @property
    def request(self) -> str:
        """The text of the last message, if it is the user's; else empty."""
        if not self.messages or self.messages[-1].get("role") != "user":
            return ""
        return _text(self.messages[-1].get("content"))


CallRule = Callable[[RecordedCall], "str | None"]
"""Returns what an auxiliary call is for, in a word or two (``"title"``); None for any other call.

Called from any thread, for calls that no later call continues. It must not change the call."""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        return ""
    parts = cast("Sequence[Any]", content)
    texts = [cast("Mapping[str, Any]", p).get("text") for p in parts if isinstance(p, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))
