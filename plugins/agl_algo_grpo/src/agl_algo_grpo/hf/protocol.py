"""OpenAI's chat and text completion protocol, with vLLM's token ids: requests in, bodies out.

Formats: OpenAI API reference, "Chat" and "Completions"; vLLM's ``return_token_ids``: for chat
``prompt_token_ids`` on the top level (in a stream: on the first chunk) and ``token_ids`` on each
choice; for completions both on the choice. What this server cannot do is refused, not ignored.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_algo_grpo.hf.engine import Token
from agl_algo_grpo.hf.text import Answer

__all__ = [
    "Body",
    "ChatRequest",
    "Choice",
    "CompletionRequest",
    "Request",
    "chat_logprobs",
    "completion_logprobs",
    "finish_reason",
    "head",
    "new_id",
    "tool_calls",
    "usage",
]

Body = dict[str, Any]

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "guided_choice": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "auto", "none"),
    "use_beam_search": (None, False),
}
"""Parameters that would change the answer, and the values with which they do not."""


class Request(BaseModel):
    """What both protocols have in common."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: int = Field(default=1, ge=1, le=256)
    stream: bool = False
    stream_options: Body | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = Field(default_factory=list[int])
    ignore_eos: bool = False
    return_token_ids: bool | None = False

    @model_validator(mode="after")
    def _can_be_done(self) -> Request:
        for key, value in (self.model_extra or {}).items():
            if key in _NEUTRAL and value not in _NEUTRAL[key]:
                raise ValueError(f"this server does not support {key}={value!r}")
        return self

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else [s for s in self.stop or () if s]

    @property
    def wants_usage(self) -> bool:
        """Whether a stream closes with a chunk of usage."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatRequest(Request):
    """Body of ``/v1/chat/completions``."""

    messages: list[Body] = Field(min_length=1)
    tools: list[Body] | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=0, ge=0, le=20)
    chat_template_kwargs: Body = Field(default_factory=dict)

    @property
    def most_tokens(self) -> int | None:
        """Longest answer that was asked for."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities were asked for."""
        return bool(self.logprobs)

    @property
    def top(self) -> int:
        """Of how many tokens per position."""
        return (self.top_logprobs or 0) if self.logprobs else 0

    @property
    def reads_tools(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and (self.model_extra or {}).get("tool_choice") != "none"


class CompletionRequest(Request):
    """Body of ``/v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=20)

    reads_tools: Literal[False] = False

    @property
    def most_tokens(self) -> int | None:
        """Longest answer that was asked for; 16 by default, as in OpenAI's protocol."""
        return self.max_tokens or 16

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities were asked for."""
        return self.logprobs is not None

    @property
    def top(self) -> int:
        """Of how many tokens per position."""
        return self.logprobs or 0


@dataclass(slots=True)
class Choice:
    """One answer as it comes.

    Attributes:
        index: Its place among the answers.
        prompt: Token ids of its prompt.
        tokens: What was sampled so far.
    """

    index: int
    prompt: Sequence[int]
    tokens: list[Token] = field(default_factory=list[Token])

    @property
    def ids(self) -> list[int]:
        """The token ids sampled so far."""
        return [token.id for token in self.tokens]


def new_id(prefix: str) -> str:
    """Return a new id for a response or a tool call."""
    return f"{prefix}-{uuid.uuid4().hex}"


def head(request: Request, response_id: str, kind: str) -> Body:
    """Return what every body of a response begins with."""
    return {
        "id": response_id,
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def usage(choices: Sequence[Choice]) -> Body:
    """Return how many tokens went in and came out; a prompt counts once."""
    prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
    sent, got = sum(prompts.values()), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}


def chat_logprobs(tokens: Sequence[Token], decode: Any) -> Body:
    """Return the log-probabilities of a part of a chat answer."""

    def entry(token_id: int, logprob: float) -> Body:
        text = decode([token_id])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    content = [
        {
            **entry(token.id, token.logprob),
            "top_logprobs": [entry(token_id, logprob) for token_id, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[Token], decode: Any, offset: int = 0) -> Body:
    """Return the log-probabilities of a part of a text completion."""
    texts = [decode([token.id]) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text(token, decode) for token in tokens],
        "text_offset": offsets,
    }


def _by_text(token: Token, decode: Any) -> dict[str, float] | None:
    """Return the likeliest tokens by their text; of several with one text the likeliest."""
    return {decode([i]): logprob for i, logprob in reversed(token.top)} or None


def tool_calls(answer: Answer, *, indexed: bool) -> list[Body]:
    """Return an answer's tool calls; ``indexed`` as a stream has them."""
    return [
        {
            **({"index": index} if indexed else {}),
            "id": new_id("call"),
            "type": "function",
            "function": dict(call),
        }
        for index, call in enumerate(answer.tool_calls)
    ]


def finish_reason(token: Token, answer: Answer) -> str | None:
    """Return why the answer ended, as the protocol calls it."""
    called = bool(answer.tool_calls) and token.finish_reason == "stop"
    return "tool_calls" if called else token.finish_reason
