"""The vocabularies that several tools share.

They are the OpenTelemetry GenAI conventions (current, and before 1.37, which AgentOps, OpenLLMetry
and LiteLLM all write), OpenInference, which instrumentation libraries write under any OpenTelemetry
tracer, and this framework's own keys. The vocabulary of a single tool is in the plugin for it.

Sources of the rows: the OpenTelemetry GenAI conventions, current and before 1.37 (opentelemetry.io/
docs/specs/semconv/gen-ai), OpenInference (github.com/Arize-ai/openinference, spec/
semantic_conventions.md), and this framework's own keys.
"""

from __future__ import annotations

from typing import Final

from agl_core import semconv
from agl_core.adapter import AgentName, Dialect, MessageShape

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
        logprobs=("logprobs.content",),
        output_tokens=("gen_ai.usage/output_tokens",),
        prompt=("gen_ai.input.messages",),
        completion=("gen_ai.output.messages",),
        prompt_shape=GEN_AI_PARTS,
        completion_shape=GEN_AI_PARTS,
    ),
)
"""These dialects, in the order in which their paths are tried; plugins' dialects follow."""
