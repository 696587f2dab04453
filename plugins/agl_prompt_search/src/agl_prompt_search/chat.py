"""Chat completions for algorithms: an error becomes part of the reply and never ends a run.

::

    reply = await ask_model(AsyncOpenAI(), "gpt-4.1-mini", [{"role": "user", "content": "Hi"}])
    if reply.problem:
        ...  # "RateLimitError: Error code: 429 ..."
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import anyio

from agl_core.errors import error_text

__all__ = ["ChatClient", "ChatReply", "ask_model"]

logger = logging.getLogger(__name__)

_DEFAULT_TIMEOUT: Final = 300.0
"""Seconds for a reply: a model that thinks before a long prompt takes minutes."""
_LIMITS: Final = frozenset(
    {"length", "max_tokens", "model_length", "max_output_tokens", "max_completion_tokens"}
)
"""Reasons to end with a part of the answer, as servers of OpenAI's protocol name them."""
_STOPPED: Final = frozenset(
    {"content_filter", "safety", "recitation", "prohibited_content", "blocklist", "refusal"}
    | {"error", "abort", "tool_calls", "function_call"}
)
"""Reasons to end without an answer; what text there is must not become a prompt."""
_LONGEST_PROBLEM: Final = 300
"""Characters: some servers answer errors with whole pages."""


class ChatClient(Protocol):
    """An async client of OpenAI's chat completions, such as ``openai.AsyncOpenAI``."""

    @property
    def chat(self) -> Any:
        """Has ``completions.create(model=…, messages=…)``, a coroutine function."""
        ...


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Reply of the model, or the reason why there is none.

    Attributes:
        text: The text of the first choice, stripped; empty if there is a problem.
        problem: Why there is no text, on one line; empty if there is one.
        cut_off: Whether the text ends at a limit of tokens.
        refused: Whether the endpoint refused this request, so that repeating it is in vain: a wrong
            key, an unknown model, a parameter that it does not take, too long a prompt.
        input_tokens: Tokens of the request as counted by the endpoint.
        output_tokens: Tokens of the answer as counted by the endpoint.
    """

    text: str = ""
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cut_off: bool = False
    refused: bool = False


async def ask_model(
    client: ChatClient,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    timeout: float = _DEFAULT_TIMEOUT,
    **options: Any,
) -> ChatReply:
    """Ask for a chat completion.

    Every exception of the client becomes the reply's ``problem`` and is logged; the client does
    the retries. Only cancellation passes through.

    Args:
        client: Sends the request.
        model: Name of the model.
        messages: The conversation in OpenAI's chat format.
        timeout: Longest wait in seconds, the client's retries included.
        **options: Further parameters of the request, for example ``temperature`` or ``seed``.
    """
    # Not fail_after: TimeoutError is also what the system raises for a lost connection.
    reply = ChatReply(problem=f"no answer within {timeout:g} s")
    with anyio.move_on_after(timeout):
        reply = await _call(client, model=model, messages=list(messages), **options)
    if reply.problem:
        logger.warning("%s: %s", model, reply.problem)
    return reply


async def _call(client: ChatClient, **request: Any) -> ChatReply:
    try:
        completion = await client.chat.completions.create(**request)
    except Exception as error:  # the caller chose the client, so it may raise anything
        return ChatReply(problem=_in_short(error_text(error)), refused=_is_refusal(error))
    return _read(completion)


def _read(completion: Any) -> ChatReply:
    usage = getattr(completion, "usage", None)
    tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    try:
        choice = completion.choices[0]
        text = choice.message.content
    except (AttributeError, IndexError, TypeError):
        return ChatReply("", "the answer is not a chat completion", *tokens)
    reason = str(getattr(choice, "finish_reason", None) or "").lower()
    if isinstance(text, list):
        text = _texts(cast("list[Any]", text))
    if text is not None and not isinstance(text, str):
        return ChatReply("", f"the answer is a {type(text).__name__}, not a text", *tokens)
    if reason in _STOPPED:
        return ChatReply("", f"the answer was stopped: {reason}", *tokens)
    declined = getattr(choice.message, "refusal", None)
    if declined and isinstance(declined, str):  # beside an empty content, and the reason "stop"
        return ChatReply("", _in_short(f"the model declined: {declined}"), *tokens)
    cut_off = reason in _LIMITS
    if not text or not text.strip():
        why = " (it reached its limit of tokens)" * cut_off
        return ChatReply("", f"the answer is empty{why}", *tokens)
    return ChatReply(text.strip(), "", *tokens, cut_off=cut_off)


def _texts(parts: Sequence[Any]) -> str:
    """Return the text of an answer in parts; thoughts are parts of other types."""

    def field(part: Any, name: str) -> Any:
        if isinstance(part, Mapping):
            return cast("Mapping[str, Any]", part).get(name)
        return getattr(part, name, None)

    texts = [field(part, "text") for part in parts if field(part, "type") in ("text", None)]
    return "".join(text for text in texts if isinstance(text, str))


def _is_refusal(error: Exception) -> bool:
    """Return whether an endpoint refused a request, and so will refuse it again."""
    status = getattr(error, "status_code", None)
    # 408, 409, 425 and 429 ask the client to wait and to repeat the request.
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 425, 429)


def _count(usage: Any, name: str) -> int:
    count = getattr(usage, name, None)
    return count if isinstance(count, int) else 0


def _in_short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_PROBLEM else line[: _LONGEST_PROBLEM - 1] + "…"
