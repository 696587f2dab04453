"""Dialects: the attribute names under which tracers and proxies store model calls and agents.

A plugin provides the vocabulary of its tool by the hook ``agl_dialect``; adapters read spans by it.

A *path* names a value: ``"gen_ai.response/id"`` is the attribute ``gen_ai.response.id``, or else
the value at ``id`` inside ``gen_ai.response``. The part before the first ``/`` is the root; its
value is the attribute of that name (JSON, or Python's notation as LiteLLM writes it) or the
attributes below it in dotted keys. The later parts are keys or list positions inside that value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, cast

Paths = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """Paths of the parts of a chat message; the defaults are OpenAI's.

    Paths are relative to a message, a tool call or a content part. An empty path means that the
    dialect does not have the part.
    """

    inside: str = ""
    """Path of the message within a list item."""
    role: str = "role"
    content: str = "content"
    name: str = "name"
    tool_call_id: str = "tool_call_id"

    tool_calls: str = "tool_calls"
    call_inside: str = ""
    call_id: str = "id"
    call_name: str = "function/name"
    call_arguments: str = "function/arguments"

    parts: str = ""
    """Path of typed content parts, in dialects that do not put them under ``content``."""
    part_inside: str = ""
    part_text: str = "text"
    part_images: Paths = ()
    part_result: Paths = ()
    """Paths of the tool's result in a part of type ``tool_call_response``."""


OPENAI: Final = MessageShape()


@dataclass(frozen=True, slots=True)
class AgentName:
    """An attribute that names an agent, and the condition under which it does.

    Attributes:
        key: The attribute with the name.
        where: Another attribute and the value it must have; None for no condition.
        span_name: Prefix that the span's name must have.
    """

    key: str
    where: tuple[str, str] | None = None
    span_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One vocabulary: for each field of a model call, the paths to try in order.

    Immutable; safe to share between threads.
    """

    name: str
    marks: Paths = ()
    """Attributes any of which marks a span as a model call of this dialect."""
    kind: str = ""
    """Attribute that says what a span is; a model call has one of ``call_kinds`` or lacks it."""
    call_kinds: Paths = ()
    agents: tuple[AgentName, ...] = ()
    """Attributes that name an agent; the first one whose condition holds is used."""
    proxy_span: str = ""
    """Name of the spans that an LLM proxy writes in this dialect, one per call."""

    response_id: Paths = ()
    prompt_ids: Paths = ()
    response_ids: Paths = ()
    logprobs: Paths = ()
    finish_reason: Paths = ()
    model: Paths = ()
    model_version: Paths = ()
    input_tokens: Paths = ()
    output_tokens: Paths = ()

    system: Paths = ()
    prompt: Paths = ()
    completion: Paths = ()
    tools: Paths = ()
    prompt_shape: MessageShape = OPENAI
    completion_shape: MessageShape = OPENAI
    tool_inside: str = ""
    """Path of a tool's definition within an item of ``tools``."""

    request: Paths = ()
    request_without: Paths = ()
    """Keys to leave out of the request's metadata, because another field holds them."""
    response: Paths = ()
    response_without: Paths = ()


def dialect_mistakes(dialect: Dialect) -> list[str]:
    """Return what is wrong with the values of a dialect, one line for each field.

    A dialect is data of another author, who may not check types. Values that pass can be used to
    read any span.
    """
    return list(_mistakes(dialect, ""))


def _mistakes(record: Any, prefix: str) -> Iterator[str]:
    for field in fields(record):
        value: object = getattr(record, field.name)
        where = f"{prefix}{field.name}"
        if field.name == "agents":
            yield from _agent_mistakes(value)
        elif isinstance(field.default, MessageShape):
            if isinstance(value, MessageShape):
                yield from _mistakes(value, f"{where}.")
            else:
                yield f"{where} is a {type(value).__name__}, not a MessageShape"
        elif isinstance(field.default, tuple):
            if not _is_paths(value):
                yield f"{where} is {value!r}, not a tuple of texts that are not empty"
        elif not isinstance(value, str) or (field.default is MISSING and not value):
            yield f"{where} is {value!r}, not a text"


def _agent_mistakes(agents: object) -> Iterator[str]:
    if not isinstance(agents, tuple):
        yield f"agents is {agents!r}, not a tuple of AgentNames"
        return
    for agent in cast("tuple[object, ...]", agents):
        if not isinstance(agent, AgentName):
            yield f"agents has {agent!r}, which is not an AgentName"
            continue
        texts: list[object] = [agent.key, agent.span_name]
        where = cast("object", agent.where)
        pair = where is None or (isinstance(where, tuple) and len(cast("Paths", where)) == 2)
        texts += cast("Paths", where) if pair and where is not None else ()
        if not pair or not all(isinstance(text, str) for text in texts):
            yield f"agents has {agent!r}, whose values are not texts"


def _is_paths(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(isinstance(path, str) and path for path in cast("tuple[object, ...]", value))
