"""The tokens of conversations, by the messages that an agent sends back.

An answer is kept under a digest of all messages up to it. The digest leaves out reasoning, since
agents drop it, and takes the arguments of tool calls as values, since agents serialise them
differently. So a call whose messages begin like an earlier conversation finds the tokens of that
conversation, forks and repeated calls included.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast

from agl_core.genai import Json

__all__ = [
    "AttemptHistory",
    "Fallback",
    "Histories",
    "KeptAnswer",
    "conversation_keys",
    "next_key",
    "only_text",
    "token_list",
]

_RENDERED: Final = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
)
"""Fields of a chat request, besides the messages, that a template renders."""
_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_MAX_ATTEMPT_TOKENS: Final = 2**21
"""A conversation of a million tokens whose prompts are kept, and a fork of it."""
_MAX_TOKENS: Final = 2**25
"""Of all attempts: 128 MiB at four bytes each."""
_MAX_ATTEMPTS: Final = 10_000
"""Ten times the rollouts that run on one machine at the same time."""


class Fallback(StrEnum):
    """Why a call with a history got the prompt that the server renders; the value is recorded."""

    UNKNOWN_HISTORY = "unknown_history"
    """No answer in the history was recorded with its token ids in this attempt."""
    FORGOTTEN = "forgotten"
    """The attempt has more tokens than are kept."""
    NOT_TEXT = "not_text"
    """A message has an image, audio or a file, for which tokens alone do not stand."""
    PREFILL = "prefill"
    """The request ends with the beginning of an answer."""
    OWN_PROMPT = "own_prompt"
    """The request brings the tokens of its prompt."""
    TEMPLATE = "template"
    """The chat template refuses the messages."""
    REWRITTEN = "rewritten"
    """The template renders the messages before the answer differently when others follow."""
    BRIDGE = "bridge"
    """The text that the template renders after the answer depends on the answer."""
    END_TOKEN = "end_token"  # noqa: S105 -- not a password
    """The answer ended with another token than that of the template."""
    UNFINISHED_CALL = "unfinished_call"
    """The answer ended within a tool call."""
    BACKEND = "backend"
    """The backend does not render prompts for others, or failed to."""
    REFUSED = "refused"
    """The backend refused the tokens, for example because they are too many."""
    IGNORED = "ignored"
    """The backend answered to another prompt than the tokens it got."""
    STORE = "store"
    """The attempt's spans could not be read, from which a restarted proxy continues."""


# -- what messages have in common ------------------------------------------------------------------


def conversation_keys(request: Json) -> list[bytes]:
    """Return a digest of the conversation up to each message of a chat request, in their order.

    Two conversations have the same digest if their messages have the same roles, texts and tool
    calls.

    Raises:
        TypeError, ValueError, AttributeError: A field does not have the type of chat.
    """
    key = _digest(b"", [request.get("model"), [request.get(name) for name in _RENDERED]])
    keys: list[bytes] = []
    for message in request["messages"]:
        key = next_key(key, message)
        keys.append(key)
    return keys or [key]


def next_key(key: bytes, message: Json) -> bytes:
    """Return the digest of a conversation with one more message."""
    return _digest(
        key,
        _answer_values(message) if message.get("role") == "assistant" else _message_values(message),
    )


def _answer_values(message: Json) -> list[Any]:
    texts = [
        part if isinstance(part, str) else str(part.get("text", part.get("refusal", "")))
        for part in _parts(message.get("content"))
        if isinstance(part, str) or part.get("type") not in _THOUGHTS
    ]
    calls = [
        [call["function"].get("name"), _values(call["function"].get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return ["assistant", _spoken("".join(texts)), calls]


def _spoken(text: str) -> str:
    """Return a text without the reasoning that a server without a parser leaves in it."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _message_values(message: Json) -> list[Any]:
    parts = _parts(message.get("content"))
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    content: Any = "".join(cast("list[str]", texts)) if only_text(message) else parts
    return [message.get("role"), message.get("name"), content]


def only_text(message: Json) -> bool:
    """Return whether a message has no image, audio or file."""
    return all(
        isinstance(part, str)
        or part.get("type") in _THOUGHTS
        or (part.get("type") in _TEXTS and isinstance(part.get("text", ""), str))
        for part in _parts(message.get("content"))
    )


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return cast("list[Any]", content)
    return [] if content is None else [content]


def _values(arguments: Any) -> Any:
    """Return the arguments of a tool call as values; a text that is not JSON stays a text."""
    if not isinstance(arguments, str):
        return _plain(arguments)
    try:
        return _plain(json.loads(arguments or "{}"))
    except ValueError:
        return arguments


def _plain(value: Any) -> Any:
    """Return a value in which 1.0 is 1: JavaScript writes both in the same way."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("Json", value).items()}
    return value


def _digest(before: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()


# -- what is kept ----------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class KeptAnswer:
    """The tokens of a conversation up to the end of an answer.

    Attributes:
        key: Digest of the conversation.
        parent: The answer that the prompt continues token by token; None if there is none.
        tokens: int32, the tokens after the parent's.
        length: Number of all tokens.
        finish_reason: Why the answer ended.
    """

    key: bytes
    parent: KeptAnswer | None
    tokens: array[int]
    length: int
    finish_reason: str | None = None

    @property
    def last(self) -> int:
        """The last sampled token."""
        return self.tokens[-1]

    def ids(self) -> list[int]:
        """Return all tokens, from the first of the conversation."""
        pieces: list[array[int]] = []
        step: KeptAnswer | None = self
        while step is not None:
            pieces.append(step.tokens)
            step = step.parent
        return [token for piece in reversed(pieces) for token in piece]

    def chain(self) -> Iterator[KeptAnswer]:
        """Yield this answer, and those that it continues."""
        step: KeptAnswer | None = self
        while step is not None:
            yield step
            step = step.parent


@dataclass(eq=False, slots=True)
class AttemptHistory:
    """The answers of one attempt, the least recently used first.

    Attributes:
        answers: The answers by the digest of their conversation.
        tokens: Number of kept tokens; those that answers share count once, and those of replaced
            answers until the next count.
        cut: Whether answers were forgotten.
        loaded: Whether the spans of the attempt were read.
    """

    answers: OrderedDict[bytes, KeptAnswer] = field(
        default_factory=lambda: OrderedDict[bytes, KeptAnswer]()
    )
    tokens: int = 0
    cut: bool = False
    loaded: bool = False

    def latest(self, keys: Sequence[bytes]) -> tuple[int, KeptAnswer] | None:
        """Return the last position whose conversation is kept, and its answer."""
        for index in range(len(keys) - 1, -1, -1):
            answer = self.answers.get(keys[index])
            if answer is not None:
                self.answers.move_to_end(answer.key)
                return index, answer
        return None

    def keep(
        self,
        key: bytes,
        parent: KeptAnswer | None,
        prompt: Sequence[int],
        sampled: Sequence[int],
        finish_reason: str | None,
        limit: int = _MAX_ATTEMPT_TOKENS,
    ) -> None:
        """Keep an answer, in place of one to the same conversation.

        Args:
            key: Digest of the conversation with the answer.
            parent: The kept answer whose tokens the prompt begins with; None if there is none.
            prompt: All tokens of the prompt.
            sampled: Tokens of the answer, at least one.
            finish_reason: Why it ended.
            limit: Number of tokens of an attempt that are kept.
        """
        known = 0 if parent is None else parent.length
        tokens = array("i", prompt[known:])
        tokens.extend(sampled)
        length = len(prompt) + len(sampled)
        self.answers[key] = KeptAnswer(key, parent, tokens, length, finish_reason)
        self.answers.move_to_end(key)
        self.tokens += len(tokens)
        if self.tokens > limit:
            self._bound(limit)

    def merge(self, older: AttemptHistory, limit: int = _MAX_ATTEMPT_TOKENS) -> None:
        """Add the answers of another history; to the same conversation, its own stay."""
        older.answers.update(self.answers)
        self.answers = older.answers
        self.cut = self.cut or older.cut
        self._bound(limit)

    def _bound(self, limit: int) -> None:
        """Count the tokens, and forget half of the answers until there are few enough."""
        self._count()
        while self.tokens > limit and self.answers:
            for _ in range((len(self.answers) + 1) // 2):
                self.answers.popitem(last=False)
            self.cut = True
            self._count()

    def _count(self) -> None:
        held = {id(step): step for answer in self.answers.values() for step in answer.chain()}
        self.tokens = sum(len(answer.tokens) for answer in held.values())


class Histories:
    """The histories of attempts, bounded: those not used for longest are forgotten first.

    Nothing is lost by that, since an attempt's history is read from the store again.

    Args:
        max_tokens: Number of tokens that are kept.
        max_attempts: Number of attempts that are kept.
    """

    def __init__(self, max_tokens: int = _MAX_TOKENS, max_attempts: int = _MAX_ATTEMPTS) -> None:
        self._max_tokens = max_tokens
        self._max_attempts = max_attempts
        self._tokens = 0
        self._attempts: OrderedDict[tuple[str, str], AttemptHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def of(self, attempt: tuple[str, str]) -> AttemptHistory:
        """Return the history of an attempt (rollout id, attempt id); an empty one if it is new."""
        found = self._attempts.setdefault(attempt, AttemptHistory())
        self._attempts.move_to_end(attempt)
        if len(self._attempts) > self._max_attempts:
            self._attempts.popitem(last=False)
        return found

    def grew(self, tokens: int) -> None:
        """Note that a history has more tokens than before; forget others if there are too many."""
        self._tokens += tokens
        if self._tokens <= self._max_tokens:
            return
        # Count them all, since forgotten histories that grow are not subtracted.
        self._tokens = sum(history.tokens for history in self._attempts.values())
        while self._tokens > self._max_tokens and len(self._attempts) > 1:
            self._tokens -= self._attempts.popitem(last=False)[1].tokens


def token_list(value: Any) -> list[int]:
    """Return a list of token ids; empty if the value is not one."""
    if not isinstance(value, (list, tuple)):
        return []
    ids = list(cast("Sequence[Any]", value))
    return ids if all(type(one) is int and 0 <= one < 2**31 for one in ids) else []
