"""Dialects: the attribute names under which tracers and proxies store model calls and agents.

The core has the vocabularies that several tools share: the OpenTelemetry GenAI conventions
(current, and before 1.37, which AgentOps, OpenLLMetry and LiteLLM all write), OpenInference, which
instrumentation libraries write under any OpenTelemetry tracer, and this framework's own keys. The
vocabulary of a single tool is in the plugin for that tool, which provides it by the hook
``agl_dialect``.

A *path* names a value: ``"gen_ai.response/id"`` is the attribute ``gen_ai.response.id``, or else
the value at ``id`` inside ``gen_ai.response``. The part before the first ``/`` is the root; its
value is the attribute of that name (JSON, or Python's notation as LiteLLM writes it) or the
attributes below it in dotted keys. The later parts are keys or list positions inside that value.

Sources of the rows: the OpenTelemetry GenAI conventions, current and before 1.37 (opentelemetry.io/
docs/specs/semconv/gen-ai), OpenInference (github.com/Arize-ai/openinference, spec/
semantic_conventions.md), and this framework's own keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agl_core import semconv

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


_OPERATION_IN: Final = semconv.OPERATION_INPUT
_OPERATION_OUT: Final = semconv.OPERATION_OUTPUT


DIALECTS: Final[tuple[Dialect, ...]] = (
    # The conventions before 1.37, with the token ids that this framework's tracers and proxies add.
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
        agents=(AgentName("agent.name"),),
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
    # `@operation` of this framework around an OpenAI client; the Weave tracer writes the same keys.
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
        kind="gen_ai.operation.name",
        call_kinds=("chat", "generate_content", "text_completion"),
        agents=(AgentName("gen_ai.agent.name", where=("gen_ai.operation.name", "invoke_agent")),),
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
        kind="openinference.span.kind",
        call_kinds=("LLM",),
        agents=(AgentName("graph.node.id", where=("openinference.span.kind", "AGENT")),),
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
    # This framework's proxies: the GenAI conventions, and the ids under the first dialect's keys.
    Dialect(
        name="proxy",
        proxy_span=semconv.SPAN_MODEL_CALL,
        response_id=("gen_ai.response/id",),
        prompt_ids=("prompt_token_ids",),
        response_ids=("response_token_ids",),
    ),
)
"""The core's dialects, in the order in which their paths are tried; plugins' dialects follow."""
