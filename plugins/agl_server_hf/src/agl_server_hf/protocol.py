"""OpenAI's chat and text completions, with vLLM's token ids: request models, response bodies.

Formats: OpenAI API reference, "Chat" and "Completions"; vLLM's ``return_token_ids``: for chat
``prompt_token_ids`` on the top level (in a stream: on the first chunk) and ``token_ids`` on each
choice; for completions both on the choice. As vLLM's, a chat request may bring the prompt's tokens
(``kv_transfer_params.prompt_token_ids``), and ``/tokenize`` renders messages without a model.
Parameters that the server cannot honour are refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_server_hf.generation import Token
from agl_server_hf.text import Answer

__all__ = [
    "Body",
    "ChatRequest",
    "Choice",
    "CompletionRequest",
    "Request",
    "TokenizeRequest",
    "chat_entry",
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
    "add_special_tokens": (False,),  # of a chat: its template has them
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Unsupported parameters, and the values that have no effect and are therefore accepted."""


class _Body(BaseModel):
    """A body in which null means that a field is left out: OpenAI's SDK sends None as null."""

    model_config = ConfigDict(extra="allow")

    model: str

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        fields = cast("Body", body)
        return {key: value for key, value in fields.items() if value is not None}

    @model_validator(mode="after")
    def _refuse_unsupported(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if key in _NEUTRAL and value not in _NEUTRAL[key]:
                raise ValueError(f"this server does not support {key}={value!r}")
        return self


class _Conversation(_Body):
    """What a prompt is rendered from."""

    messages: list[Body] = Field(min_length=1)
    tools: list[Body] = Field(default_factory=list[Body])
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Body = Field(default_factory=dict)


class Request(_Body):
    """Fields of both kinds of request."""

    n: int = Field(default=1, ge=1, le=256)
    stream: bool = False
    stream_options: Body = Field(default_factory=dict)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: str | list[str] = Field(default_factory=list[str])
    stop_token_ids: list[int] = Field(default_factory=list[int])
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else [s for s in self.stop if s]

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk that reports usage."""
        return bool(self.stream_options.get("include_usage"))


class ChatRequest(_Conversation, Request):
    """Body of ``/v1/chat/completions``."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    kv_transfer_params: Body = Field(default_factory=dict)

    @property
    def prompt_ids(self) -> list[int] | None:
        """Token ids that replace the rendered prompt; None renders the messages.

        Raises:
            ValueError: They are not a list of integers.
        """
        ids = self.kv_transfer_params.get("prompt_token_ids")
        if ids is None:
            return None
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise ValueError("kv_transfer_params.prompt_token_ids must be a list of integers")
        return ids

    @property
    def token_limit(self) -> int | None:
        """Requested limit of the answer, in tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities were asked for."""
        return self.logprobs

    @property
    def top(self) -> int:
        """Number of likeliest tokens to report per position."""
        return self.top_logprobs if self.logprobs else 0

    @property
    def reads_tools(self) -> bool:
        """Whether the answer is searched for tool calls."""
        return bool(self.tools) and (self.model_extra or {}).get("tool_choice") != "none"


class CompletionRequest(Request):
    """Body of ``/v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    add_special_tokens: bool = True
    logprobs: int | None = Field(default=None, ge=0, le=20)

    reads_tools: Literal[False] = False

    @property
    def token_limit(self) -> int | None:
        """Requested limit of the answer, in tokens; 16 by default, as in OpenAI's protocol."""
        return self.max_tokens or 16

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities were asked for."""
        return self.logprobs is not None

    @property
    def top(self) -> int:
        """Number of likeliest tokens to report per position."""
        return self.logprobs or 0


class TokenizeRequest(_Conversation):
    """Body of ``/tokenize``: messages, as those of a chat request."""


@dataclass(slots=True)
class Choice:
    """One answer while it is sampled.

    Attributes:
        index: Position among the request's answers.
        prompt: Token ids of the prompt.
        tokens: Tokens sampled so far.
        ids: Their ids.
        reasoning_open: Whether the prompt ends with the mark that begins reasoning; None before it
            was looked for.
    """

    index: int
    prompt: Sequence[int]
    tokens: list[Token] = field(default_factory=list[Token])
    ids: list[int] = field(default_factory=list[int])
    reasoning_open: bool | None = None


def new_id(prefix: str) -> str:
    """Return a new id for a response or a tool call."""
    return f"{prefix}-{uuid.uuid4().hex}"


def head(request: Request, response_id: str, kind: str) -> Body:
    """Return the fields that every response body starts with."""
    return {
        "id": response_id,
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def usage(choices: Sequence[Choice]) -> Body:
    """Return the token counts; a prompt with several answers counts once."""
    prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
    sent, got = sum(prompts.values()), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}


def chat_entry(text: str) -> Body:
    """Return what the log-probabilities of a chat answer say of each token with this text."""
    return {"token": text, "bytes": list(text.encode())}


def chat_logprobs(tokens: Sequence[Token], entry_of: Callable[[int], Body]) -> Body:
    """Return the log-probabilities of some tokens of a chat answer.

    Args:
        tokens: The tokens.
        entry_of: Returns the :func:`chat_entry` of a token's text.
    """
    content = [
        {
            **entry_of(token.id),
            "logprob": token.logprob,
            "top_logprobs": [
                {**entry_of(token_id), "logprob": logprob} for token_id, logprob in token.top
            ],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[Token], text_of: Callable[[int], str], offset: int = 0
) -> Body:
    """Return the log-probabilities of some tokens of a text completion."""
    texts = [text_of(token.id) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text(token, text_of) for token in tokens],
        "text_offset": offsets,
    }


def _by_text(token: Token, text_of: Callable[[int], str]) -> dict[str, float] | None:
    """Return the likeliest tokens by text; where two share a text, the likelier one."""
    return {text_of(i): logprob for i, logprob in reversed(token.top)} or None


def tool_calls(answer: Answer, *, indexed: bool) -> list[Body]:
    """Return an answer's tool calls; in a stream each has its index."""
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
    """Return the protocol's reason for the end of the answer."""
    called = bool(answer.tool_calls) and token.finish_reason == "stop"
    return "tool_calls" if called else token.finish_reason
