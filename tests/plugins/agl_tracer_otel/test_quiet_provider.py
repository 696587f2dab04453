"""Tests that the framework's provider has no effect while no trace is open."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(program: str) -> str:
    """Run a program in a separate process, because the global provider can be set only once."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spans_and_headers_are_there_in_a_trace_only():
    out = run(
        """
        import asyncio
        from opentelemetry import trace, propagate
        from agl_tracer_otel import OtelTracer

        early = trace.get_tracer("library")

        def headers():
            with early.start_as_current_span("call") as span:
                carrier = {}
                propagate.inject(carrier)
                inner = trace.get_tracer("other").start_span("inner")
                recording = span.is_recording(), inner.is_recording()
                inner.end()
                return *recording, sorted(carrier)

        async def main():
            print(headers())
            tracer = OtelTracer()
            with tracer.lifespan():
                print(headers())
                async with tracer.trace_context():
                    print(headers())
                print([span.name for span in tracer.get_last_trace()])
            print(headers())

        asyncio.run(main())
        """
    )
    silent = "(False, False, [])"
    heard = "(True, True, ['traceparent'])"
    assert out.splitlines() == [silent, silent, heard, "['inner', 'call']", silent]


def test_a_processor_of_the_applications_hears_everything():
    out = run(
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import SpanProcessor
        from agl_tracer_otel import OtelTracer

        class Printer(SpanProcessor):
            def on_end(self, span):
                print(span.name)

        with OtelTracer().lifespan():
            trace.get_tracer("x").start_span("unheard").end()
            trace.get_tracer_provider().add_span_processor(Printer())
            trace.get_tracer("x").start_span("heard").end()
        """
    )
    assert out.splitlines() == ["heard"]
