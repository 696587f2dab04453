"""Base of the parts of the adapter suite: the fixtures and the flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_core.adapter import Adapter
from agl_core.types import Span
from agl_testing.suite import Suite
from agl_testing.traces import trace

__all__ = ["AdapterTests", "MakeTrace"]

MakeTrace = Callable[..., list[Span]]


class AdapterTests(Suite):
    """Base of the adapter suite's parts.

    The author supplies a fixture ``adapter``, and overrides ``make_trace`` if the adapter reads
    spans of another form than tracers write. Each turn of such a trace adds the same number of
    spans at its end. An adapter that makes nothing of the traces fails: nothing would be tested.
    """

    suite_name = "adapter"
    FLAGS: ClassVar[dict[str, str]] = {
        "triplets": "the adapter makes one triplet per model call, with token ids and rewards",
        "logprobs": "the triplets have the log-probabilities and the text of the calls, too",
        "messages": "the adapter makes one conversation per model call",
        "rows": "the adapter joins calls to rows with a mask and log-probabilities",
        "empty": "a trace without spans is an ordinary case and gives an empty result",
    }

    @pytest.fixture
    def adapter(self) -> Adapter[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `adapter`")

    @pytest.fixture
    def make_trace(self) -> MakeTrace:
        """Return a function like :func:`agl_testing.traces.trace`."""
        return trace
