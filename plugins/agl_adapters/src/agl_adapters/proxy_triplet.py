"""Converts the spans of an LLM proxy to triplets, ordered by the store's sequence ids."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

from agl_adapters.auxiliary import auxiliary_calls
from agl_adapters.config import ProxyTripletConfig
from agl_adapters.model_call import ModelCall
from agl_adapters.otel_spans import as_spans
from agl_adapters.recorded_calls import SeenCalls, call_order, chosen_choice, is_broken
from agl_adapters.vocabulary import count_unread, vocabulary
from agl_core import semconv
from agl_core.adapter import AdapterReport, Reason, TraceToTripletBase, read_reward
from agl_core.plugins import configured_by
from agl_core.types import Span, SpanLike, Triplet

_logger = logging.getLogger(__name__)


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """Converts a proxy's spans to triplets of token ids, in order of their sequence ids.

    A call is a span that has the name of a dialect's proxy spans and token ids of both prompt and
    response. Of several spans of one call the first is kept. Calls that failed, those of which
    token ids are missing, and auxiliary ones are left out. Of several choices, the one is kept that
    a later call goes on with. A reward is assigned to the latest call with a smaller sequence id
    and no reward yet. Times are not compared, because the clocks of the proxy's machine and the
    agent's may differ.

    ``prompt`` is ``{"token_ids": list[int]}``; ``response`` is the same and, where captured,
    ``"logprobs"``: one entry per response token in OpenAI's form. ``metadata`` is
    ``{"response_id": str | None}``.
    """

    @configured_by(ProxyTripletConfig)
    def __init__(self, config: ProxyTripletConfig) -> None:
        self.keep_auxiliary = config.keep_auxiliary

    def adapt_with_report(
        self, source: Sequence[SpanLike], /
    ) -> tuple[list[Triplet], AdapterReport]:
        """Convert the spans of one attempt; no spans give no triplets."""
        spans = sorted(as_spans(source), key=call_order)
        report = AdapterReport(spans=len(spans))
        triplets: list[Triplet] = []
        seen = SeenCalls()
        known_ids: set[str] = set()
        kept: set[int] = set()  # sequence ids
        empty: list[tuple[str | None, int]] = []
        waiting: list[tuple[int, Triplet]] = []  # calls without a reward
        pending: list[tuple[int, Triplet]] = []  # calls of the sequence id being read
        tables = vocabulary().proxy_tables
        count_unread(spans, report)
        auxiliary = {} if self.keep_auxiliary else _auxiliary(spans)
        for index, span in enumerate(spans):
            # A reward must not match a call with the same sequence id.
            if pending and pending[0][0] < span.sequence_id:
                waiting += pending
                pending.clear()
            table = tables.get(span.name)
            if table is not None and semconv.REPLAYED_CALL in span.attributes:
                report.leave_out("call", Reason.REPLAYED)
            elif table is not None:
                call = ModelCall(span.attributes, table)
                prompt_ids, response_ids = call.prompt_ids, call.response_ids
                logprobs = call.logprobs
                response_id = call.response_id
                for problem in call.problems:
                    _logger.warning("span %s (%s): %s", span.span_id, span.name, problem)
                    report.repair("call", problem)
                if not prompt_ids or not response_ids:
                    empty.append((response_id, span.sequence_id))
                elif seen.find(span, call) is not None:
                    report.leave_out("call", Reason.DUPLICATE_RESPONSE)
                elif is_broken(span):
                    report.leave_out("call", Reason.BROKEN)
                elif not call.has_all_ids:
                    report.leave_out("call", Reason.INCOMPLETE_IDS)
                elif span.span_id in auxiliary:
                    report.leave_out("call", f"{Reason.AUXILIARY}: {auxiliary[span.span_id]}")
                elif (used := _used_choice(call, spans[index + 1 :], report)) is None:
                    report.leave_out("call", Reason.SEVERAL_CHOICES)
                elif not (used_ids := call.of_choice(used).response_ids):
                    report.leave_out("call", Reason.NO_TOKEN_IDS)
                else:
                    response: dict[str, Any] = {"token_ids": used_ids}
                    if used:
                        logprobs = call.of_choice(used).logprobs
                    if logprobs is not None:
                        response["logprobs"] = logprobs
                    triplet = Triplet(
                        prompt={"token_ids": prompt_ids},
                        response=response,
                        metadata={"response_id": response_id},
                    )
                    triplets.append(triplet)
                    pending.append((span.sequence_id, triplet))
                    kept.add(span.sequence_id)
                    seen.add(span, call)
                    known_ids.add(response_id or "")
            reward = read_reward(span)
            if reward is not None:
                if math.isnan(reward):
                    report.leave_out("reward", Reason.NOT_A_NUMBER)
                elif waiting:
                    waiting.pop()[1].reward = reward
                else:
                    report.leave_out("reward", Reason.NO_CALL)
        # A proxy writes several spans per call under one sequence id; only one has the token ids.
        for response_id, sequence_id in empty:
            twin = response_id in known_ids or sequence_id in kept
            report.leave_out("call", Reason.DUPLICATE_RESPONSE if twin else Reason.NO_TOKEN_IDS)
        report.produce("triplets", len(triplets))
        return triplets, report


def _auxiliary(spans: Iterable[Span]) -> dict[str, str]:
    """Return what each auxiliary call of a proxy's spans is for, by the id of its span."""
    tables, seen = vocabulary().proxy_tables, SeenCalls()
    calls: list[tuple[Span, ModelCall]] = []
    for span in spans:
        if span.name not in tables or semconv.REPLAYED_CALL in span.attributes or is_broken(span):
            continue
        # All dialects, since an auxiliary call is recognised by the request's parameters, too.
        call = ModelCall(span.attributes)
        if call.prompt_ids and call.response_ids and seen.find(span, call) is None:
            calls.append((span, call))
            seen.add(span, call)
    return auxiliary_calls(calls)


def _used_choice(call: ModelCall, later: Iterable[Span], report: AdapterReport) -> int | None:
    """Return the choice of a call that a later one goes on with; None if that is unknown."""
    if call.choices == 1:
        return 0
    tables = vocabulary().proxy_tables
    calls = (ModelCall(span.attributes, tables[span.name]) for span in later if span.name in tables)
    used = chosen_choice(call, calls)
    if used is not None:
        report.leave_out("choice", Reason.OTHER_CHOICE, call.choices - 1)
    return used
