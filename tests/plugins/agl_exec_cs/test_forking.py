from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from pathlib import Path

import pytest

from agl_exec_cs.forking import between_imports

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module whose import signals its start, and continues when the test allows it."""
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "agl_test_import", (begun, go_on), raising=False)
    (tmp_path / "agl_slow_module.py").write_text(
        "import sys\nbegun, go_on = sys.agl_test_import\nbegun.set()\nassert go_on.wait(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importer = threading.Thread(target=importlib.import_module, args=("agl_slow_module",))
    importer.start()
    assert begun.wait(20)
    yield go_on
    go_on.set()
    importer.join()
    sys.modules.pop("agl_slow_module", None)


def import_it() -> None:
    importlib.import_module("agl_slow_module")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads is deprecated
def test_a_child_forked_during_an_import_can_import(slow_module: threading.Event):
    child = multiprocessing.get_context("fork").Process(target=import_it)
    threading.Timer(0.3, slow_module.set).start()
    with between_imports():
        child.start()
    assert slow_module.is_set()  # the fork waited for the end of the import
    child.join(20)
    assert child.exitcode == 0


@pytest.mark.timing
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_thread_that_imports_may_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "agl_forking_module.py").write_text(
        "import multiprocessing, time\n"
        "from agl_exec_cs.forking import between_imports\n"
        "child = multiprocessing.get_context('fork').Process(target=print)\n"
        "start = time.monotonic()\n"
        "with between_imports():\n"
        "    child.start()\n"
        "took = time.monotonic() - start\n"
        "child.join(20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("agl_forking_module")
    assert made.child.exitcode == 0
    assert made.took < 1.5  # it does not wait for an import
