"""Base of the parts of the adapter suite: the fixtures and the flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_adapters import is_model_call
from agl_core.adapter import Adapter
from agl_core.types import Span
from agl_testing.suite import Suite
from agl_testing.traces import trace

__all__ = ["AdapterTests", "MakeTrace", "call_at", "calls_at", "counts", "turns_of"]

MakeTrace = Callable[..., list[Span]]

OF_TRACERS = (
    "the flags `triplets`, `logprobs` and `messages` are for adapters of spans as agl's tracers "
    "write them: `make_trace` must return the spans of `agl_testing.traces.trace`, in its keys: "
    "one of an agent, then one of a call and one of its reward for each turn"
)


class AdapterTests(Suite):
    """Base of the adapter suite's parts.

    The author supplies a fixture ``adapter``, and overrides ``make_trace`` if the adapter reads
    spans of another form than tracers write. Each turn of such a trace adds the same number of
    spans at its end. An adapter that makes nothing of the traces fails: nothing would be tested.
    The tests compare results with ``==`` and count them with ``len``.
    """

    suite_name = "adapter"
    FLAGS: ClassVar[dict[str, str]] = {
        "triplets": "the adapter makes one triplet per model call, with token ids and rewards; it"
        " reads spans in the keys of agl's tracers, and a trace of one turn has three: of an agent,"
        " of a call, of its reward",
        "logprobs": "the triplets have the log-probabilities and the text of the calls, too; spans"
        " as for `triplets`",
        "messages": "the adapter makes one conversation per model call; spans in the keys of agl's"
        " tracers",
        "rows": "the adapter joins calls to rows with a mask and log-probabilities, which have the"
        " fields of `agl_adapter_trajectory.TrajectoryRow`; it reads spans in the keys of agl's"
        " tracers, whatever `make_trace` returns",
        "empty": "a trace without spans is an ordinary case and gives an empty result",
    }

    @pytest.fixture
    def adapter(self) -> Adapter[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `adapter`")

    @pytest.fixture
    def make_trace(self) -> MakeTrace:
        """Return a function like :func:`agl_testing.traces.trace`."""
        return trace


def counts(adapter: Adapter[Any, Any]) -> bool:
    """Return whether an adapter counts; one that leaves nothing out may override `adapt` alone."""
    base: Any = Adapter
    return type(adapter).adapt_with_report is not base.adapt_with_report


def calls_at(spans: list[Span]) -> list[int]:
    """Return the places of the model calls of a trace in the form of tracers."""
    places = [place for place, span in enumerate(spans) if is_model_call(span.attributes)]
    assert places, OF_TRACERS
    return places


def call_at(spans: list[Span]) -> int:
    """Return the place of the first model call of a trace in the form of tracers."""
    return calls_at(spans)[0]


def turns_of(make_trace: MakeTrace, turns: int) -> list[Span]:
    """Return a trace in the form of tracers: an agent, then a call and a reward for each turn."""
    spans = make_trace(turns)
    assert calls_at(spans) == [*range(1, 2 * turns, 2)] and len(spans) == 1 + 2 * turns, OF_TRACERS  # noqa: PT018
    return spans
