"""Converts spans to conversations in OpenAI's chat format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from agl_adapters.auxiliary import auxiliary_calls
from agl_adapters.chat import check_message, to_messages, to_tools
from agl_adapters.config import MessagesConfig
from agl_adapters.dialects import GEN_AI_PARTS
from agl_adapters.literals import as_text
from agl_adapters.model_call import ModelCall, at
from agl_adapters.otel_spans import as_spans
from agl_adapters.recorded_calls import (
    SeenCalls,
    call_order,
    chosen_choice,
    is_broken,
    is_same_inside,
)
from agl_adapters.vocabulary import count_unread, is_model_call
from agl_core.adapter import AdapterReport, Reason, TraceAdapter
from agl_core.errors import InvalidArgumentError
from agl_core.otel import filter_and_unflatten_attributes, unflatten_attributes
from agl_core.plugins import configured_by
from agl_core.types import OpenAIMessages, Span, SpanLike

_LEGACY_LISTS: Final = ("gen_ai.prompt", "gen_ai.completion")
_LEGACY_MAPPINGS: Final = ("gen_ai.request", "gen_ai.response")
_LEGACY_BELOW: Final = tuple(f"{prefix}." for prefix in (*_LEGACY_LISTS, *_LEGACY_MAPPINGS))


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Converts each model call to the messages sent and received, in the order of the spans.

    ``messages`` holds the messages of the request and then the assistant's answers, validated
    against OpenAI's chat format. An answer has the tool calls that its child spans describe
    (attributes ``tool.*``), or else its own. ``tools`` holds the definitions offered, or None.

    Calls whose messages were not captured are left out and counted, and so are repetitions and
    answers that broke off. Of several spans of one call the first is kept. Of a call nested in a
    call the inner one is kept, unless only the outer one has a response id; if both have one, they
    are one call if their answers are equal. Of a call with several choices, the one is kept that a
    later call goes on with; if no call does, each choice becomes a conversation of its own.
    Auxiliary calls, such as those for a title, are left out.
    """

    @configured_by(MessagesConfig)
    def __init__(self, config: MessagesConfig) -> None:
        self.keep_auxiliary = config.keep_auxiliary

    def adapt_with_report(
        self, source: Sequence[SpanLike], /
    ) -> tuple[list[OpenAIMessages], AdapterReport]:
        """Convert the spans of one attempt.

        Raises:
            InvalidArgumentError: A span's messages do not form a list, or one of them is not a
                message of OpenAI's chat format.
        """
        spans = as_spans(source)
        report = AdapterReport(spans=len(spans))
        count_unread(spans, report)
        tools_below = _tool_spans(spans)
        recorded = _recorded(spans, report)
        around = _around(recorded, {span.span_id: span.parent_id for span in spans})
        calls: list[tuple[Span, ModelCall]] = []
        seen, told = SeenCalls(), set[str]()
        for span in spans:
            call = recorded.get(span.span_id)
            if call is None:
                continue
            outermost = _outermost(span.span_id, recorded, around)
            if outermost in told or seen.find(span, call) is not None:
                report.leave_out("call", Reason.DUPLICATE_RESPONSE)
                continue
            if is_broken(span) and call.find("completion")[1]:
                report.leave_out("call", Reason.BROKEN)
                continue
            calls.append((span, call))
            seen.add(span, call)
            told.add(outermost)
        repetitions = _repetitions(recorded, around)
        once = [(span, call) for span, call in calls if span.span_id not in repetitions]
        once.sort(key=lambda one: call_order(one[0]))
        places = {span.span_id: place for place, (span, _) in enumerate(once)}
        auxiliary = {} if self.keep_auxiliary else auxiliary_calls(once)
        conversations: list[OpenAIMessages] = []
        for span, call in calls:
            if span.span_id in repetitions:
                report.leave_out("call", Reason.NESTED_CALL)
                continue
            if span.span_id in auxiliary:
                report.leave_out("call", f"{Reason.AUXILIARY}: {auxiliary[span.span_id]}")
                continue
            later = (other for _, other in islice(once, places[span.span_id] + 1, None))
            found = _conversations(span, call, tools_below.get(span.span_id, []), later, report)
            if not found:
                report.leave_out("call", Reason.NO_MESSAGES)
            conversations += found
        report.produce("conversations", len(conversations))
        return conversations, report


def _recorded(spans: Sequence[Span], report: AdapterReport) -> dict[str, ModelCall]:
    """Return the calls whose messages were captured, by span id."""
    recorded: dict[str, ModelCall] = {}
    for span in spans:
        if not (is_model_call(span.attributes) or _is_legacy_call(span)):
            continue
        _check_legacy(span)
        call = ModelCall(span.attributes)
        if any(call.find(field)[1] for field in ("system", "prompt", "completion")):
            recorded[span.span_id] = call
        else:
            report.leave_out("call", Reason.NO_MESSAGES)
    return recorded


def _around(recorded: Mapping[str, ModelCall], parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the span of the nearest call around each call that is nested in one.

    Args:
        recorded: All calls by span id.
        parents: Parent's span id by span id, of all spans.
    """
    around: dict[str, str] = {}
    for inner in recorded:
        outer, passed = parents.get(inner), {inner}
        while outer is not None and outer not in recorded and outer not in passed:
            passed.add(outer)
            outer = parents.get(outer)
        if outer is not None and outer in recorded:
            around[inner] = outer
    return around


def _outermost(span_id: str, recorded: Mapping[str, ModelCall], around: Mapping[str, str]) -> str:
    """Return the span of the outermost call with the same response id around a call, or its own.

    Nested spans with one id are one call, whatever their clocks say: a proxy may run elsewhere.
    """
    response_id, passed = recorded[span_id].response_id, {span_id}
    while (
        response_id is not None
        and (outer := around.get(span_id)) is not None
        and outer not in passed
        and recorded[outer].response_id == response_id
    ):
        passed.add(outer)
        span_id = outer
    return span_id


def _repetitions(recorded: Mapping[str, ModelCall], around: Mapping[str, str]) -> set[str]:
    """Return the spans of calls that repeat a call nested in them, or around them.

    Args:
        recorded: All calls by span id.
        around: The nearest call around each nested one, by span id.
    """
    repetitions: set[str] = set()
    for inner, outer in around.items():
        call, outer_call = recorded[inner], recorded[outer]
        if outer_call.response_id is None:
            repetitions.add(outer)
        elif call.response_id is None:
            repetitions.add(inner)
        elif outer_call.response_id != call.response_id and is_same_inside(outer_call, call):
            repetitions.add(outer)
    return repetitions


def _conversations(
    span: Span,
    call: ModelCall,
    called: Sequence[Mapping[str, Any]],
    later: Iterable[ModelCall],
    report: AdapterReport,
) -> list[OpenAIMessages]:
    """Return the conversation of each choice of a call that counts; none without messages."""
    system, _ = call.structure("system")
    raw_prompt, prompt_row = call.structure("prompt")
    raw_completion, completion_row = call.structure("completion")
    where = f"span {span.span_id} ({span.name})"
    messages: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    if isinstance(system, list):
        parts = cast("list[Any]", system)
        messages += to_messages([{"role": "system", "parts": parts}], GEN_AI_PARTS, report)
    if prompt_row is not None:
        messages += to_messages(_sequence(raw_prompt, where), prompt_row.prompt_shape, report)
    for message in messages:
        if message.get("role") == "assistant" and message.get("tool_calls"):
            # The format wants the key. Text beside the calls stays; some tracers write "" for none.
            message["content"] = message.get("content") or None
        else:
            message.setdefault("content", "")
    if completion_row is not None:
        raw_answers = _sequence(raw_completion, where)
        for answer in to_messages(raw_answers, completion_row.completion_shape, report):
            if answer.get("role") != "assistant":
                report.leave_out("message", Reason.NOT_ASSISTANT)
                continue
            answer.setdefault("content", None)
            if called:
                answer["tool_calls"] = [_tool_call(tool) for tool in called]
            answers.append(answer)
    if not messages and not answers:
        return []
    if len(answers) > 1:
        used = chosen_choice(call, later)
        if used is not None and used < len(answers):
            report.leave_out("choice", Reason.OTHER_CHOICE, len(answers) - 1)
            answers = [answers[used]]
    raw_tools, tools_row = call.structure("tools")
    tools = to_tools(raw_tools, tools_row)
    checked = [
        check_message(message, f"{where}, message {index}")
        for index, message in enumerate(messages)
    ]
    ends = [[check_message(one, f"{where}, message {len(messages)}")] for one in answers]
    return [OpenAIMessages(messages=[*checked, *end], tools=tools) for end in ends or [[]]]


def _is_legacy_call(span: Span) -> bool:
    kind = span.attributes.get("gen_ai.operation.name")
    return kind is None and any(key.startswith(_LEGACY_BELOW) for key in span.attributes)


def _check_legacy(span: Span) -> None:
    """Check the shape of attributes of the GenAI conventions before 1.37.

    Those conventions number messages from 0 (``gen_ai.prompt.0.role``), so the keys below a list
    must form a list, except those that are not numbers (Azure's ``prompt_filter_results``).
    """
    for prefixes, kind in ((_LEGACY_LISTS, list), (_LEGACY_MAPPINGS, dict)):
        for prefix in prefixes:
            if prefix in span.attributes:
                continue  # one attribute holds the whole list or mapping as JSON
            found = filter_and_unflatten_attributes(span.attributes, prefix)
            if kind is list and isinstance(found, dict):
                messages = {key: value for key, value in found.items() if key.isdecimal()}
                found = unflatten_attributes(messages) or found
            if found and type(found) is not kind:
                raise InvalidArgumentError(
                    f"span {span.span_id} ({span.name}): attributes {prefix}.* must form a "
                    f"{'list' if kind is list else 'mapping'}"
                )


def _sequence(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    raise InvalidArgumentError(f"{where}: messages must form a list, not {value!r:.80}")


def _tool_spans(spans: Sequence[Span]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the ``tool`` attributes of spans with a tool call id, by the span id of the parent."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for span in spans:
        if span.parent_id and any(key.startswith("tool.") for key in span.attributes):
            tool = filter_and_unflatten_attributes(span.attributes, "tool")
            if isinstance(tool, dict) and at(tool, ("call", "id")) is not None:
                found.setdefault(span.parent_id, []).append(tool)
    return found


def _tool_call(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": at(tool, ("call", "id")),
        "type": at(tool, ("call", "type")) or "function",
        "function": {"name": tool.get("name"), "arguments": as_text(tool.get("parameters"))},
    }
