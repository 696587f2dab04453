from __future__ import annotations

import pytest

from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_tracer_dummy import DummyTracer
from agl_tracer_otel import OtelTracer


def test_the_built_in_tracers_are_built_by_name():
    assert isinstance(build_component("tracer", "otel"), OtelTracer)
    assert isinstance(build_component("tracer", "dummy"), DummyTracer)
    tracer = build_component("tracer", {"type": "otel", "instrument": ["x"], "max_buffered": 7})
    assert isinstance(tracer, OtelTracer)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"type": "otel", "instrment": "auto"}, "tracer.instrment"),
        ({"type": "otel", "max_buffered": 0}, "tracer.max_buffered"),
        ({"type": "otel", "instrument": "openai"}, "tracer.instrument"),
        ({"type": "dummy", "x": 1}, "tracer.x"),
    ],
)
def test_a_wrong_option_is_an_error_with_its_path(spec: dict[str, object], path: str):
    with pytest.raises(ConfigError, match=path):
        build_component("tracer", spec)
