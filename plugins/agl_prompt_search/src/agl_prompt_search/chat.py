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
from typing import Any, Protocol

import anyio

from agl_core.errors import error_text

__all__ = ["ChatClient", "ChatReply", "ask_model"]

logger = logging.getLogger(__name__)

_DEFAULT_TIMEOUT = 300.0
_LONGEST_PROBLEM = 300  # characters; some servers answer errors with whole pages


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
        input_tokens: Tokens of the request as counted by the endpoint.
        output_tokens: Tokens of the answer as counted by the endpoint.
    """

    text: str = ""
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0


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
    try:
        with anyio.fail_after(timeout):
            completion = await client.chat.completions.create(
                model=model, messages=list(messages), **options
            )
    except TimeoutError:
        reply = ChatReply(problem=f"no answer within {timeout:g} s")
    except Exception as error:  # the caller chose the client, so it may raise anything
        reply = ChatReply(problem=_in_short(error_text(error)))
    else:
        reply = _read(completion)
    if reply.problem:
        logger.warning("%s: %s", model, reply.problem)
    return reply


def _read(completion: Any) -> ChatReply:
    usage = getattr(completion, "usage", None)
    tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    try:
        text = completion.choices[0].message.content
    except (AttributeError, IndexError, TypeError):
        return ChatReply("", "the answer is not a chat completion", *tokens)
    if text is not None and not isinstance(text, str):
        return ChatReply("", f"the answer is a {type(text).__name__}, not a text", *tokens)
    if not text or not text.strip():
        return ChatReply("", "the answer is empty", *tokens)
    return ChatReply(text.strip(), "", *tokens)


def _count(usage: Any, name: str) -> int:
    count = getattr(usage, name, None)
    return count if isinstance(count, int) else 0


def _in_short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_PROBLEM else line[: _LONGEST_PROBLEM - 1] + "…"
