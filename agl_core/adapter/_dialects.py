"""Which attribute holds what: the dialects that tracers write model calls in, as one table.

Teaching the adapters a new dialect is adding a row to :data:`DIALECTS`; nothing else changes.

A *path* names a value: ``"gen_ai.response/id"`` is the attribute ``gen_ai.response.id``, or else
what is found at ``id`` inside ``gen_ai.response``. What comes before the first ``/`` is the root;
its value is the attribute of that name (JSON, or Python's notation as LiteLLM writes it) or what
lies below it in dotted keys. The later parts are keys or list positions inside that value.

Sources of the rows: the OpenTelemetry GenAI conventions, current and before 1.37 (opentelemetry.io/
docs/specs/semconv/gen-ai), OpenInference (github.com/Arize-ai/openinference, spec/
semantic_conventions.md), the LiteLLM and OpenLLMetry exporters, and this framework's own keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, NamedTuple

from agl_core import semconv

__all__ = [
    "AGENT_NAMES",
    "DIALECTS",
    "FIELDS",
    "GEN_AI_PARTS",
    "PROXY_DIALECTS",
    "AgentName",
    "Dialect",
    "FieldTable",
    "MessageShape",
    "Paths",
    "Source",
    "agent_name",
    "compile_fields",
    "is_model_call",
    "split_root",
]

Paths = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """Where the parts of a chat message are; the defaults are OpenAI's.

    All are paths within a message, a tool call or a content part. Empty: the dialect has none.
    """

    inside: str = ""
    """Where the message itself is within a list item."""
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
    """Where typed content parts are, in dialects that do not put them under ``content``."""
    part_inside: str = ""
    part_text: str = "text"
    part_images: Paths = ()
    part_result: Paths = ()
    """Where a part of type ``tool_call_response`` holds the tool's answer."""


OPENAI: Final = MessageShape()
CHOICE: Final = MessageShape(inside="message")
GEN_AI_LEGACY: Final = MessageShape(call_name="name", call_arguments="arguments")
GEN_AI_PARTS: Final = MessageShape(
    parts="parts",
    part_text="content",
    part_images=("uri", "url"),
    part_result=("response", "result"),
    call_name="name",
    call_arguments="arguments",
)
OPENINFERENCE: Final = MessageShape(
    inside="message",
    call_inside="tool_call",
    parts="contents",
    part_inside="message_content",
    part_images=("image/image/url", "image/url"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One row: for each field of a model call, the paths it may be found at, best first."""

    name: str
    marks: Paths = ()
    """Attributes any of which marks a span as a model call of this dialect."""
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
    """Where a tool's definition is within an item of ``tools``."""

    request: Paths = ()
    request_without: Paths = ()
    """Keys that are no part of the request's metadata because another field holds them."""
    response: Paths = ()
    response_without: Paths = ()


_OPERATION_IN: Final = semconv.OPERATION_INPUT
_OPERATION_OUT: Final = semconv.OPERATION_OUTPUT


def _litellm_raw(provider: str) -> Dialect:
    """The provider's own request and response, as LiteLLM's ``raw_gen_ai_request`` spans."""
    root = f"llm.{provider}"
    return Dialect(
        name=f"litellm raw {provider}",
        marks=(f"{root}.id", f"{root}.choices"),
        proxy_span="raw_gen_ai_request",
        response_id=(f"{root}.id",),
        prompt_ids=(f"{root}.prompt_token_ids",),
        response_ids=(f"{root}.response_token_ids/0", f"{root}.choices/0/token_ids"),
        logprobs=(f"{root}.choices/0/logprobs/content",),
        finish_reason=(f"{root}.choices/0/finish_reason",),
        model=(f"{root}.model",),
        input_tokens=(f"{root}.usage/prompt_tokens",),
        output_tokens=(f"{root}.usage/completion_tokens",),
        prompt=(f"{root}.messages",),
        completion=(f"{root}.choices",),
        completion_shape=CHOICE,
        tools=(f"{root}.tools",),
    )


DIALECTS: Final[tuple[Dialect, ...]] = (
    # AgentOps, OpenLLMetry and LiteLLM's `litellm_request`, with the token ids that the tracers
    # and proxies of this framework add.
    Dialect(
        name="gen_ai legacy",
        marks=(
            "gen_ai.prompt.0.role",
            "gen_ai.prompt.0.content",
            "gen_ai.completion.0.role",
            "gen_ai.completion.0.content",
            "prompt_token_ids",
            "response_token_ids",
        ),
        proxy_span="litellm_request",
        response_id=("gen_ai.response/id",),
        prompt_ids=("prompt_token_ids",),
        response_ids=("response_token_ids",),
        logprobs=("logprobs.content",),
        finish_reason=("gen_ai.completion/0/finish_reason",),
        model=("gen_ai.response/model", "gen_ai.request/model"),
        model_version=(semconv.MODEL_VERSION,),
        input_tokens=("gen_ai.usage/prompt_tokens",),
        output_tokens=("gen_ai.usage/completion_tokens",),
        prompt=("gen_ai.prompt",),
        completion=("gen_ai.completion",),
        prompt_shape=GEN_AI_LEGACY,
        completion_shape=GEN_AI_LEGACY,
        tools=("gen_ai.request/functions", "llm.request.functions"),
        request=("gen_ai.request",),
        response=("gen_ai.response",),
    ),
    # Weave's calls and `@operation` around an OpenAI client.
    Dialect(
        name="operation",
        marks=(f"{_OPERATION_OUT}.choices", f"{_OPERATION_OUT}.choices.0.message.role"),
        response_id=(f"{_OPERATION_OUT}/id",),
        prompt_ids=(f"{_OPERATION_OUT}/prompt_token_ids",),
        response_ids=(
            f"{_OPERATION_OUT}/response_token_ids/0",
            f"{_OPERATION_OUT}/choices/0/token_ids",
            f"{_OPERATION_OUT}/choices/0/provider_specific_fields/token_ids",
        ),
        logprobs=(f"{_OPERATION_OUT}/choices/0/logprobs/content",),
        finish_reason=(f"{_OPERATION_OUT}/choices/0/finish_reason",),
        model=(f"{_OPERATION_OUT}/model", f"{_OPERATION_IN}/model"),
        input_tokens=(f"{_OPERATION_OUT}/usage/prompt_tokens",),
        output_tokens=(f"{_OPERATION_OUT}/usage/completion_tokens",),
        prompt=(f"{_OPERATION_IN}/messages",),
        completion=(f"{_OPERATION_OUT}/choices",),
        completion_shape=CHOICE,
        tools=(f"{_OPERATION_IN}/tools",),
        request=(_OPERATION_IN,),
        request_without=("messages",),
        response=(_OPERATION_OUT,),
        response_without=("choices", "prompt_token_ids", "response_token_ids"),
    ),
    Dialect(
        name="gen_ai",
        marks=("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.response.id"),
        finish_reason=(
            "gen_ai.response/finish_reasons/0",
            "gen_ai.output.messages/0/finish_reason",
        ),
        input_tokens=("gen_ai.usage/input_tokens",),
        output_tokens=("gen_ai.usage/output_tokens",),
        system=("gen_ai.system_instructions",),
        prompt=("gen_ai.input.messages",),
        completion=("gen_ai.output.messages",),
        prompt_shape=GEN_AI_PARTS,
        completion_shape=GEN_AI_PARTS,
        tools=("gen_ai.tool.definitions",),
    ),
    Dialect(
        name="openinference",
        marks=(
            "llm.model_name",
            "llm.input_messages.0.message.role",
            "llm.output_messages.0.message.role",
        ),
        # The response as the client library returned it, and as LangChain wraps it.
        response_id=(
            "output.value/id",
            "output.value/generations/0/0/message/kwargs/response_metadata/id",
        ),
        prompt_ids=("output.value/prompt_token_ids",),
        response_ids=("output.value/choices/0/token_ids",),
        logprobs=("output.value/choices/0/logprobs/content",),
        finish_reason=("llm.finish_reason",),
        model=("llm.response.model_name", "llm.model_name", "llm.request.model_name"),
        input_tokens=("llm.token_count.prompt",),
        output_tokens=("llm.token_count.completion",),
        prompt=("llm.input_messages",),
        completion=("llm.output_messages",),
        prompt_shape=OPENINFERENCE,
        completion_shape=OPENINFERENCE,
        tools=("llm.tools",),
        tool_inside="tool/json_schema",
        request=("llm.invocation_parameters",),
    ),
    _litellm_raw("hosted_vllm"),
    _litellm_raw("openai"),
    _litellm_raw("vllm"),
    # The proxies of this framework: the GenAI conventions, and the ids under the first row's keys.
    Dialect(
        name="proxy",
        proxy_span=semconv.SPAN_MODEL_CALL,
        response_id=("gen_ai.response/id",),
        prompt_ids=("prompt_token_ids",),
        response_ids=("response_token_ids",),
    ),
)
"""Every dialect, in the order in which their paths are tried."""

PROXY_DIALECTS: Final[Mapping[str, tuple[Dialect, ...]]] = {
    name: tuple(row for row in DIALECTS if row.proxy_span == name)
    for name in dict.fromkeys(row.proxy_span for row in DIALECTS if row.proxy_span)
}
"""The dialects of proxies by the name of their spans."""

_KINDS: Final[Mapping[str, Paths]] = {
    "gen_ai.operation.name": ("chat", "generate_content", "text_completion"),
    "openinference.span.kind": ("LLM",),
}
"""What a span that says its kind must say to be a model call (and not an agent or a tool)."""


# -- compiled once from the table ----------------------------------------------------------------


class Source(NamedTuple):
    """A path taken apart."""

    key: str
    """The one attribute that may hold the value itself."""
    root: str
    steps: tuple[str, ...]
    row: Dialect


FieldTable = Mapping[str, tuple[Source, ...]]


def compile_fields(rows: Sequence[Dialect]) -> FieldTable:
    """Return, per field, the sources of all rows in the order to try them."""

    def source(path: str, row: Dialect) -> Source:
        root, *steps = path.split("/")
        return Source(path.replace("/", "."), root, tuple(steps), row)

    names = [
        column.name
        for column in fields(Dialect)
        if column.name not in {"name", "marks", "proxy_span", "tool_inside"}
        and not column.name.endswith(("_shape", "_without"))
    ]
    return {
        name: tuple(source(path, row) for row in rows for path in getattr(row, name))
        for name in names
    }


FIELDS: Final = compile_fields(DIALECTS)
_ROOTS: Final = re.compile(
    "({})\\.(.+)".format(
        "|".join(
            re.escape(root)
            for root in sorted({source.root for sources in FIELDS.values() for source in sources})
        )
    ),
    re.DOTALL,
)
_MARKS: Final = frozenset(mark for row in DIALECTS for mark in row.marks)


@lru_cache(maxsize=16_384)  # spans use few different keys, over and over
def split_root(key: str) -> tuple[str, str] | None:
    """Split an attribute's key into a root of the table and the rest, if it is below one."""
    found = _ROOTS.fullmatch(key)
    return (found[1], found[2]) if found else None


def is_model_call(attributes: Mapping[str, Any]) -> bool:
    """Say whether a span's attributes are those of a call to a model, in any dialect."""
    if _MARKS.isdisjoint(attributes):
        return False
    return all(str(attributes.get(key, kinds[0])) in kinds for key, kinds in _KINDS.items())


# -- agents --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentName:
    """An attribute that names an agent, if the condition holds.

    Attributes:
        key: The attribute with the name.
        where: Another attribute and the value it must have; None for no condition.
        span_name: What the span's name must begin with.
    """

    key: str
    where: tuple[str, str] | None = None
    span_name: str = ""


AGENT_NAMES: Final[tuple[AgentName, ...]] = (
    AgentName("agent.name"),
    AgentName("operation.name", where=("agentops.span.kind", "agent")),
    AgentName("agent.role", where=("agentops.span.kind", "agent")),  # CrewAI's
    AgentName("recipient_agent_type"),
    AgentName("langchain.chain.type"),
    AgentName("executor.id"),
    AgentName(f"{_OPERATION_IN}.name", where=("type", "agent")),
    AgentName("lc_name", span_name="langchain.Chain."),
    AgentName("gen_ai.agent.name", where=("gen_ai.operation.name", "invoke_agent")),
    AgentName("graph.node.id", where=("openinference.span.kind", "AGENT")),
)
"""Where agent frameworks write an agent's name; the first that applies wins."""

_AGENT_KEYS: Final = frozenset(rule.key for rule in AGENT_NAMES)


def agent_name(span_name: str, attributes: Mapping[str, Any]) -> str | None:
    """Return the name of the agent whose run the span is, or None if it is no agent's."""
    if _AGENT_KEYS.isdisjoint(attributes):
        return None
    for rule in AGENT_NAMES:
        value = attributes.get(rule.key)
        if (
            value is not None
            and (rule.where is None or attributes.get(rule.where[0]) == rule.where[1])
            and span_name.startswith(rule.span_name)
        ):
            return str(value)
    return None
