"""Budgets: what a rollout used, as its spans say."""

from __future__ import annotations

from agl_core.types import AttributeValue, Span
from agl_train import Spending


def span(at: int, *, parent: Span | None = None, **attributes: AttributeValue) -> Span:
    """Return a span; keys of attributes have dots for double underscores."""
    return Span.from_attributes(
        attributes={f"gen_ai.{key.replace('__', '.')}": it for key, it in attributes.items()},
        rollout_id="r",
        attempt_id="a",
        sequence_id=at,
        trace_id="0a" * 16,
        span_id=f"{at:016x}",
        parent_id=parent.span_id if parent else None,
        name="chat",
        start_time=float(at),
        end_time=at + 0.5,
    )


def call(at: int, response: str, taken: AttributeValue, *, parent: Span | None = None) -> Span:
    """Return a span of a model call that wrote ten tokens."""
    names = {"operation__name": "chat", "response__id": response}
    used = {"usage__input_tokens": taken, "usage__output_tokens": 10}
    return span(at, parent=parent, **names, **used)


def test_a_call_that_its_client_and_the_proxy_recorded_counts_once():
    spent = Spending(max_tokens=100, max_cost=None, price=(1, 2))
    of_client = call(1, "one", 20)
    spent.count(iter([of_client, call(2, "one", 20, parent=of_client), call(3, "two", 30)]))
    assert (spent.input, spent.output) == (50, 20)
    assert spent.cost == (50 + 2 * 20) / 1e6


def test_what_no_span_tells_counts_nothing():
    spent = Spending(None, None, None)
    spent.count([])
    spent.count([call(1, "one", "many")])
    assert (spent.input, spent.output) == (0, 10)


def test_tokens_outside_of_calls_count_but_not_the_sums_of_frameworks():
    spent = Spending(None, None, None)
    agent = span(1, operation__name="invoke_agent", usage__input_tokens=27, usage__output_tokens=10)
    inner = call(2, "one", 20, parent=agent)
    embedding = span(3, parent=agent, operation__name="embeddings", usage__input_tokens=7)
    transport = span(4, parent=inner, usage__input_tokens=20, usage__output_tokens=10)
    by_hand = span(5, usage__input_tokens=3)
    spent.count([agent, inner, embedding, transport, by_hand])
    assert (spent.input, spent.output) == (20 + 7 + 3, 10)
