"""Tests of the adapter contract, the report, and building adapters by name."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_core.adapter import (
    Adapter,
    AdapterReport,
    OtelTraceAdapter,
    Reason,
    Repair,
    TraceAdapter,
    TraceToTripletBase,
)
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_core.types import RewardMatchPolicy, Span


class Count(TraceAdapter[int]):
    def adapt(self, source: Sequence[Span], /) -> int:
        return len(source)


def spans(count: int) -> list[Span]:
    return [Span.from_attributes(attributes={}) for _ in range(count)]


def test_an_adapter_of_a_plugin_overrides_adapt_alone() -> None:
    adapter = Count()
    assert adapter(spans(2)) == 2
    assert adapter.adapt_with_report(spans(3)) == (3, AdapterReport())


def test_an_adapter_without_adapt_is_not_implemented() -> None:
    for adapter in (Adapter[int, int](), OtelTraceAdapter[int](), TraceToTripletBase()):
        for call in (adapter.adapt, adapter.adapt_with_report, adapter):
            with pytest.raises(NotImplementedError, match=type(adapter).__name__):
                call(1)  # pyright: ignore[reportArgumentType]


def test_triplet_producers_are_marked() -> None:
    assert isinstance(TracerTraceToTriplet(), TraceToTripletBase)
    assert isinstance(LlmProxyTraceToTriplet(), TraceToTripletBase)
    assert not isinstance(TraceToMessages(), TraceToTripletBase)


def test_threads_that_share_an_adapter_get_their_own_reports() -> None:
    adapter = TracerTraceToTriplet()
    wrong: list[tuple[int, int]] = []
    barrier = threading.Barrier(4)

    def work(count: int) -> None:
        barrier.wait()
        for _ in range(50):
            _, report = adapter.adapt_with_report(spans(count))
            if report.spans != count:
                wrong.append((count, report.spans))

    threads = [threading.Thread(target=work, args=(count,)) for count in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reports_add_up_and_read_well() -> None:
    first = AdapterReport(spans=3)
    first.produce("triplets", 1)
    first.leave_out("call", Reason.NO_TOKEN_IDS)
    first.leave_out("call", Reason.NO_TOKEN_IDS, 2)
    first.leave_out("call", Reason.NO_MESSAGES, 0)
    first.repair("span", Repair.CYCLE)
    second = AdapterReport(spans=2)
    second.produce("triplets", 2)
    second.leave_out("reward", "a plugin's own reason")
    total = sum([first, second], AdapterReport())
    assert str(total) == (
        "5 spans -> 3 triplets\n"
        "left out: 3 calls (no token ids), 1 reward (a plugin's own reason)\n"
        "repaired: 1 span (parent cycle cut)"
    )
    assert total.count("call") == total.count("call", Reason.NO_TOKEN_IDS) == 3
    assert total.count("call", Reason.NO_MESSAGES) == 0
    assert json.loads(json.dumps(total.as_dict())) == {
        "spans": 5,
        "produced": {"triplets": 3},
        "left_out": {"call": {"no token ids": 3}, "reward": {"a plugin's own reason": 1}},
        "repaired": {"span": {"parent cycle cut": 1}},
    }
    assert first.spans == 3  # an addition changes neither report
    assert str(AdapterReport()) == "0 spans -> nothing"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triplet", TracerTraceToTriplet),
        ("proxy-triplet", LlmProxyTraceToTriplet),
        ("messages", TraceToMessages),
    ],
)
def test_the_built_ins_are_built_by_name(name: str, kind: type[Any]) -> None:
    assert isinstance(build_component("adapter", name), kind)


def test_a_triplet_adapter_is_configured_by_a_dict() -> None:
    adapter = build_component(
        "adapter",
        {
            "type": "triplet",
            "agent_match": "writer",
            "reward_match": "first_sibling",
            "_skip_empty_token_spans": True,
        },
    )
    assert isinstance(adapter, TracerTraceToTriplet)
    assert adapter.rules.agent_match == "writer"
    assert adapter.reward_match is RewardMatchPolicy.FIRST_SIBLING
    assert adapter.skip_empty_token_spans is True


@pytest.mark.parametrize(
    "config",
    [
        {"type": "triplet", "agent_match": "("},
        {"type": "triplet", "reward_match": "best"},
        {"type": "triplet", "agent": "x"},
        {"type": "messages", "x": 1},
    ],
)
def test_a_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build_component("adapter", config)


def test_adapters_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from agl_core.plugins import build_component\n"
        "for name in ('triplet', 'proxy-triplet', 'messages'):\n"
        "    assert 'agl_adapters' in type(build_component('adapter', name)).__module__\n"
        "heavy = {'openai', 'torch', 'fastapi', 'aiohttp', 'graphviz', 'opentelemetry.sdk.trace'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
