"""Instrumentation libraries, each installed as a distribution."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest

from agl_core.errors import TracerError
from agl_tracer_otel import OtelTracer

LIBRARY = """
def call():
    return "answer"
"""

GOOD = """
import fake_library
from opentelemetry import trace

class Instrumentor:
    original = None

    @property
    def is_instrumented_by_opentelemetry(self):
        return Instrumentor.original is not None

    def instrument(self, *, tracer_provider):
        tracer = tracer_provider.get_tracer("fake")
        Instrumentor.original = original = fake_library.call

        def call():
            with tracer.start_as_current_span("fake.call"):
                return original()

        fake_library.call = call

    def uninstrument(self):
        fake_library.call = Instrumentor.original
        Instrumentor.original = None
"""

DECLINING = """
class Instrumentor:
    is_instrumented_by_opentelemetry = False
    def instrument(self, **kwargs): print("dependency conflict")
"""

STICKY = """
class Instrumentor:
    is_instrumented_by_opentelemetry = False
    def instrument(self, **kwargs): self.is_instrumented_by_opentelemetry = True
    def uninstrument(self): raise OSError("stuck")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs instrumentation libraries, given as sources by name."""
    names = ["fake_library"]
    (tmp_path / "fake_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(dist: str = "fake", **sources: str):
        lines = ["[opentelemetry_instrumentor]"]
        for name, source in sources.items():
            module = f"instrumentation_{name}" if dist == "fake" else f"{dist}_{name}"
            names.append(module)
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
            lines.append(f"{name} = {module}:Instrumentor")
        info = tmp_path / f"{dist}_instrumentations-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(lines))
        importlib.invalidate_caches()
        return importlib.import_module("fake_library")

    yield install
    for name in names:
        sys.modules.pop(name, None)


async def test_auto_activates_what_is_installed_and_reports_the_rest(
    installed, make_desk, caplog: pytest.LogCaptureFixture
):
    library = installed(
        good=GOOD, declining=DECLINING, missing="import no_such_library", broken="1 / 0"
    )
    before = library.call
    desk = make_desk(instrument="auto")
    report = desk.tracer.instrumentation
    assert report.active == ("good",)
    assert set(report.problems) == {"declining", "missing", "broken"}
    assert "declined" in report.problems["declining"]
    assert "no_such_library" in report.problems["missing"]
    assert "division by zero" in report.problems["broken"]
    assert "cannot instrument 'broken'" in caplog.text

    rollout = await desk.rollout()
    async with desk.trace(rollout):
        assert library.call() == "answer"
    assert await desk.names(rollout) == ["fake.call"]
    desk.tracer.teardown_worker(0)
    assert library.call is before


def test_the_last_user_removes_it(installed):
    library = installed(good=GOOD)
    before = library.call
    one, two = OtelTracer(instrument=["good"]), OtelTracer(instrument="auto")
    for _ in range(2):
        one.init_worker(0)
        one.init_worker(1)
        two.init_worker(0)
        patched = library.call
        assert patched is not before
        one.teardown_worker(0)
        one.teardown_worker(1)
        assert library.call is patched
        two.teardown_worker(0)
        assert library.call is before


def test_libraries_that_the_application_instrumented_are_unchanged(installed):
    from opentelemetry.trace import NoOpTracerProvider

    library = installed(good=GOOD)
    module = importlib.import_module("instrumentation_good")
    module.Instrumentor().instrument(tracer_provider=NoOpTracerProvider())
    theirs = library.call
    tracer = OtelTracer(instrument=["good"])
    with tracer.lifespan():
        assert tracer.instrumentation.active == ("good",)
        assert library.call is theirs
    assert library.call is theirs


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "'absent': it is not installed; installed are: .*good"),
        ("declining", "'declining': it declined"),
        ("broken", "'broken': division by zero"),
    ],
)
def test_a_library_requested_by_name_must_activate(installed, name: str, message: str):
    library = installed(good=GOOD, declining=DECLINING, broken="1 / 0")
    before = library.call
    tracer = OtelTracer(instrument=["good", name])
    with pytest.raises(TracerError, match=message):
        tracer.init_worker(0)
    assert library.call is before  # the libraries activated before the error are deactivated


def test_a_library_that_cannot_be_removed_is_logged(installed, caplog: pytest.LogCaptureFixture):
    installed(sticky=STICKY)
    with OtelTracer(instrument=["sticky"]).lifespan():
        assert caplog.text == ""
    assert "'sticky' could not be removed" in caplog.text
    assert "stuck" in caplog.text


def test_of_several_with_one_name_one_is_used_and_the_others_are_named(
    installed, caplog: pytest.LogCaptureFixture
):
    library = installed(good=GOOD)
    before = library.call
    installed(dist="other", good=GOOD)
    tracer = OtelTracer(instrument="auto")
    with tracer.lifespan():
        assert tracer.instrumentation.active == ("fake:good",)
        assert tracer.instrumentation.problems == {
            "other:good": "fake:good is active; name the one you want instead"
        }
    assert "not instrumenting 'other:good'" in caplog.text

    tracer = OtelTracer(instrument=["other:good"])
    with tracer.lifespan():
        assert tracer.instrumentation.active == ("other:good",)
    with pytest.raises(TracerError, match=r"name one of them: fake:good, other:good"):
        OtelTracer(instrument=["good"]).init_worker(0)
    with pytest.raises(TracerError, match="'third:good': it is not installed"):
        OtelTracer(instrument=["third:good"]).init_worker(0)
    assert library.call is before
