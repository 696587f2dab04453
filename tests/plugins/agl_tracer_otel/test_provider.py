"""Tests of the global provider; it can be set only once, so each test has its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PRELUDE = """
import asyncio
from opentelemetry import trace
from agl_core.emitter import emit_reward
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

def run(tracer, body):
    async def main():
        store = InMemoryLightningStore()
        with tracer.lifespan(store):
            rollout = await store.start_rollout("task")
            async with tracer.trace_context(
                rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
            ):
                body()
        return [span.name for span in await store.query_spans(rollout.rollout_id)]
    return asyncio.run(main())

def library_call():
    trace.get_tracer("library").start_span("library.call").end()

def both():
    library_call()
    emit_reward(1.0)
"""


def python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_without_one_ours_is_installed():
    python("""
        from opentelemetry.sdk.trace import TracerProvider
        from agl_tracer_otel.provider import get_tracer, get_tracer_provider
        try:
            get_tracer_provider()
        except RuntimeError as error:
            assert "lifespan" in str(error)
        else:
            raise AssertionError
        isolated = get_tracer(use_active_span_processor=False)
        assert run(OtelTracer(), lambda: isolated.start_span("x").end()) == []
        assert run(OtelTracer(), both) == ["library.call", "agentlightning.annotation"]
        assert isinstance(trace.get_tracer_provider(), TracerProvider)
        assert get_tracer_provider() is trace.get_tracer_provider()
    """)


def test_the_applications_provider_is_joined_and_rewards_are_not_sampled_out():
    python("""
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON

        theirs = TracerProvider(sampler=DEFAULT_ON, span_limits=SpanLimits(max_span_attributes=1))
        exporter = InMemorySpanExporter()
        theirs.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(theirs)
        assert run(OtelTracer(), both) == ["library.call", "agentlightning.annotation"]
        assert [span.name for span in exporter.get_finished_spans()] == [
            "library.call", "agentlightning.annotation"
        ]
        assert len(exporter.get_finished_spans()[1].attributes) == 2
        theirs.sampler = ALWAYS_OFF
        getattr(theirs, "_tracers", {}).clear()  # newer SDKs keep tracers, and these their sampler
        assert run(OtelTracer(), both) == ["agentlightning.annotation"]
    """)


def test_a_provider_that_is_not_the_sdks_is_logged_and_emitters_work():
    output = python("""
        import logging
        logging.basicConfig()
        trace.set_tracer_provider(trace.NoOpTracerProvider())
        assert run(OtelTracer(), both) == ["agentlightning.annotation"]
        assert run(OtelTracer(), both) == ["agentlightning.annotation"]
    """)
    assert output.count("NoOpTracerProvider, which is not the OpenTelemetry SDK's") == 1


def test_a_switched_off_sdk_is_refused():
    python(
        """
        try:
            run(OtelTracer(), both)
        except RuntimeError as error:
            assert "unset OTEL_SDK_DISABLED" in str(error)
        else:
            raise AssertionError
        """,
        OTEL_SDK_DISABLED="true",
    )


def test_environment_variables_do_not_thin_out_traces():
    python(
        """
        assert run(OtelTracer(), both) == ["library.call", "agentlightning.annotation"]
        """,
        OTEL_TRACES_SAMPLER="always_off",
        OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="1",
    )


def test_processors_are_logged_on_request():
    output = python(
        """
        import logging
        logging.basicConfig(level=logging.INFO)
        from agl_tracer_otel.provider import get_tracer_provider
        with OtelTracer().lifespan():
            get_tracer_provider()
        """,
        AGL_EMITTER_DEBUG="1",
    )
    assert "span processors: " in output


def test_a_forked_worker_has_an_exporter_of_its_own():
    if not hasattr(os, "fork"):
        return
    python("""
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forking with threads
        tracer = OtelTracer()
        tracer.init_worker(0)
        child = os.fork()
        if child == 0:
            names = run(OtelTracer(), both)
            os._exit(0 if names == ["library.call", "agentlightning.annotation"] else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        tracer.teardown_worker(0)
    """)
