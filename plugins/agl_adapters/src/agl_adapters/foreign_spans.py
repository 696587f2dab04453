"""Reads model calls of tools that spread a message over several attributes.

A dialect names the attribute of each field, which is not enough for these tools. Their spans get
the attributes of the GenAI conventions beside their own, which every adapter reads. Sources:

* Vercel AI SDK: ai-sdk.dev/docs/ai-sdk-core/telemetry, "Collected Data".
* Google ADK: google.github.io/adk-docs, its spans ``call_llm`` and ``generate_content``; requests
  and responses in the form of ai.google.dev/api/generate-content.
* Langfuse: langfuse.com/docs/opentelemetry, "Property Mapping", as its SDKs write it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from agl_adapters.literals import as_list, as_text, parse_json
from agl_core.genai import MALFORMED, input_messages, output_messages
from agl_core.types import Span

__all__ = ["foreign_tool", "with_conventions"]

_Json = dict[str, Any]
_VERCEL: Final = "ai.operationId"
_ADK: Final = "gcp.vertex.agent.llm_request"
_LANGFUSE: Final = "langfuse.observation.type"
_MARKS: Final = frozenset({_VERCEL, _ADK, _LANGFUSE})
_INPUT: Final = "gen_ai.input.messages"
_OUTPUT: Final = "gen_ai.output.messages"


def foreign_tool(attributes: Mapping[str, Any]) -> str | None:
    """Return the tool that recorded a model call in its own form; None for any other span."""
    if _MARKS.isdisjoint(attributes):
        return None
    operation = str(attributes.get(_VERCEL, ""))
    if operation.endswith((".doGenerate", ".doStream")):
        return "Vercel AI SDK"
    if _ADK in attributes:
        return "Google ADK"
    return "Langfuse" if attributes.get(_LANGFUSE) == "generation" else None


def with_conventions(span: Span) -> Span:
    """Return a span with the attributes of the GenAI conventions, if it is a call of such a tool.

    A span whose content is not in the tool's form is returned unchanged.
    """
    attributes = span.attributes
    tool = foreign_tool(attributes)
    if tool is None or (_INPUT in attributes and _OUTPUT in attributes):
        return span
    try:
        sent, answer, more = _READERS[tool](attributes)
        found: _Json = {
            "gen_ai.operation.name": "chat",
            _INPUT: json.dumps(input_messages({"messages": sent})) if sent else None,
            _OUTPUT: json.dumps(output_messages([{"message": answer}])) if answer else None,
            **more,
        }
    except MALFORMED:
        return span
    if not answer:
        return span
    given = {key: value for key, value in found.items() if value is not None}
    return span.model_copy(update={"attributes": {**given, **attributes}})


_Read = tuple[list[_Json], _Json | None, _Json]
"""Messages that were sent, the answer, further attributes."""


# -- Vercel AI SDK ---------------------------------------------------------------------------------


def _vercel(attributes: Mapping[str, Any]) -> _Read:
    sent = [
        one
        for message in as_list(attributes.get("ai.prompt.messages"))
        for one in _vercel_message(message)
    ]
    text = attributes.get("ai.response.text") or attributes.get("ai.response.object")
    calls = [_vercel_call(call) for call in as_list(attributes.get("ai.response.toolCalls"))]
    answer = _answer(text, calls, attributes.get("ai.response.reasoning"))
    tools = [parse_json(tool) for tool in as_list(attributes.get("ai.prompt.tools"))]
    reason = attributes.get("ai.response.finishReason")
    more: _Json = {
        "gen_ai.response.id": attributes.get("ai.response.id"),
        "gen_ai.request.model": attributes.get("ai.model.id"),
        "gen_ai.response.model": attributes.get("ai.response.model"),
        "gen_ai.response.finish_reasons": [reason.replace("-", "_")] if reason else None,
        "gen_ai.usage.input_tokens": attributes.get("ai.usage.inputTokens")
        or attributes.get("ai.usage.promptTokens"),
        "gen_ai.usage.output_tokens": attributes.get("ai.usage.outputTokens")
        or attributes.get("ai.usage.completionTokens"),
        "gen_ai.tool.definitions": json.dumps([_vercel_tool(t) for t in tools]) if tools else None,
    }
    return sent, answer, more


def _vercel_message(message: _Json) -> Iterator[_Json]:
    content = message["content"]
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    texts: list[_Json] = []
    calls: list[_Json] = []
    reasoning: list[str] = []
    for part in cast("list[_Json]", content):
        match part["type"]:
            case "text":
                texts.append({"type": "text", "text": part["text"]})
            case "reasoning":
                reasoning.append(part["text"])
            case "tool-call":
                calls.append(_vercel_call(part))
            case "tool-result":
                found = part.get("output", part.get("result"))
                if isinstance(found, dict) and "value" in found:  # AI SDK 5: {type, value}
                    found = cast("_Json", found)["value"]
                yield {
                    "role": "tool",
                    "content": as_text(found),
                    "tool_call_id": part["toolCallId"],
                }
            case _:
                texts.append(part)
    if texts or calls or reasoning:
        made: _Json = {"role": message["role"], "content": texts or None}
        yield made | _given({"tool_calls": calls, "reasoning": "".join(reasoning)})


def _vercel_call(call: _Json) -> _Json:
    return _call(call["toolCallId"], call["toolName"], call.get("input", call.get("args")))


def _vercel_tool(tool: _Json) -> _Json:
    schema = tool.get("inputSchema", tool.get("parameters"))
    about = {"name": tool["name"], "description": tool.get("description"), "parameters": schema}
    return {"type": "function", "function": _given(about)}


# -- Google ADK ------------------------------------------------------------------------------------


def _adk(attributes: Mapping[str, Any]) -> _Read:
    request: _Json = _dict(attributes.get(_ADK))
    response: _Json = _dict(attributes.get("gcp.vertex.agent.llm_response"))
    config: _Json = request.get("config") or {}
    sent: list[_Json] = []
    if system := config.get("system_instruction"):
        parts = cast("_Json", system).get("parts") if isinstance(system, dict) else None
        told = "".join(part.get("text") or "" for part in parts) if parts else system
        sent.append({"role": "system", "content": told})
    for content in request.get("contents") or ():
        sent += _gemini_messages(content)
    content = response.get("content") or _candidate(response)
    answers = list(_gemini_messages(content)) if content else []
    usage: _Json = response.get("usage_metadata") or {}
    reason = response.get("finish_reason")
    tools = [
        {"type": "function", "function": declared}
        for tool in config.get("tools") or ()
        for declared in tool.get("function_declarations") or ()
    ]
    more: _Json = {
        "gen_ai.request.model": request.get("model"),
        "gen_ai.response.finish_reasons": [str(reason).lower()] if reason else None,
        "gen_ai.usage.input_tokens": usage.get("prompt_token_count"),
        "gen_ai.usage.output_tokens": usage.get("candidates_token_count"),
        "gen_ai.tool.definitions": json.dumps(tools) if tools else None,
    }
    return sent, answers[0] if answers else None, more


def _candidate(response: _Json) -> _Json | None:
    candidates: list[_Json] = response.get("candidates") or []
    return candidates[0].get("content") if candidates else None


def _gemini_messages(content: _Json) -> Iterator[_Json]:
    role = {"model": "assistant"}.get(content.get("role") or "user", "user")
    texts: list[_Json] = []
    calls: list[_Json] = []
    reasoning: list[str] = []
    for part in cast("list[_Json]", content.get("parts") or ()):
        if (call := part.get("function_call")) is not None:
            calls.append(_call(call.get("id") or call["name"], call["name"], call.get("args")))
        elif (answered := part.get("function_response")) is not None:
            id_ = answered.get("id") or answered["name"]
            found = as_text(answered.get("response"))
            yield {"role": "tool", "content": found, "tool_call_id": id_}
        elif part.get("text") is not None and part.get("thought"):
            reasoning.append(part["text"])
        elif part.get("text") is not None:
            texts.append({"type": "text", "text": part["text"]})
        else:
            texts.append({"type": "unknown", **part})
    if texts or calls or reasoning:
        made: _Json = {"role": role, "content": texts or None}
        yield made | _given({"tool_calls": calls, "reasoning": "".join(reasoning)})


# -- Langfuse --------------------------------------------------------------------------------------


def _langfuse(attributes: Mapping[str, Any]) -> _Read:
    given = parse_json(attributes.get("langfuse.observation.input"))
    tools: Any = None
    if isinstance(given, dict) and "messages" in given:
        tools = cast("_Json", given).get("tools")
        given = cast("_Json", given)["messages"]
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    sent = cast("list[_Json]", given if isinstance(given, list) else [given] if given else [])
    output = parse_json(attributes.get("langfuse.observation.output"))
    if isinstance(output, list) and output:
        output = cast("list[Any]", output)[-1]
    answer = cast("_Json", output) if isinstance(output, dict) else _answer(output, [], None)
    if answer is not None and "role" not in answer:  # structured output of an application
        answer = {"role": "assistant", "content": json.dumps(answer)}
    usage: _Json = _dict(attributes.get("langfuse.observation.usage_details"))
    parameters: _Json = _dict(attributes.get("langfuse.observation.model.parameters"))
    more: _Json = {
        **{f"gen_ai.request.{key}": _primitive(value) for key, value in parameters.items()},
        "gen_ai.request.model": attributes.get("langfuse.observation.model.name"),
        "gen_ai.usage.input_tokens": usage.get("input"),
        "gen_ai.usage.output_tokens": usage.get("output"),
        "gen_ai.tool.definitions": json.dumps(tools) if tools else None,
    }
    return sent, answer, more


# -- helpers ---------------------------------------------------------------------------------------

_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], _Read]]] = {
    "Google ADK": _adk,
    "Langfuse": _langfuse,
    "Vercel AI SDK": _vercel,
}


def _answer(text: Any, calls: list[_Json], reasoning: Any) -> _Json | None:
    if not text and not calls and not reasoning:
        return None
    made: _Json = {"role": "assistant", "content": as_text(text) if text else None}
    return made | _given({"tool_calls": calls, "reasoning": reasoning})


def _call(call_id: Any, name: Any, arguments: Any) -> _Json:
    function = {"name": name, "arguments": as_text({} if arguments is None else arguments)}
    return {"id": call_id, "type": "function", "function": function}


def _dict(value: Any) -> _Json:
    parsed = parse_json(value)
    return cast("_Json", parsed) if isinstance(parsed, dict) else {}


def _given(values: Mapping[str, Any]) -> _Json:
    return {key: value for key, value in values.items() if value}


def _primitive(value: Any) -> Any:
    return value if isinstance(value, (str, bool, int, float)) else json.dumps(value)
