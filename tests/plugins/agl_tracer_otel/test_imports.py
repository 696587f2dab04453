"""Calls of a function when a library is imported."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agl_tracer_otel.imports import on_import


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lib_early.py").write_text("VALUE = 1\n")
    (tmp_path / "lib_late").mkdir()
    (tmp_path / "lib_late/__init__.py").write_text("from lib_late.inner import VALUE\n")
    (tmp_path / "lib_late/inner.py").write_text("VALUE = 2\n")
    (tmp_path / "lib_slow.py").write_text(
        "import lib_gate\nlib_gate.begun.set()\nassert lib_gate.opened.wait(10)\nVALUE = 3\n"
    )
    (tmp_path / "lib_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("lib_")]:
        del sys.modules[name]


def test_it_is_called_for_imported_modules_and_for_later_imports(libraries):
    importlib.import_module("lib_early")
    path = list(sys.meta_path)
    told: list[tuple[str, int]] = []
    names = ["lib_early", "lib_late", "lib_broken", "lib_never", "lib_late.inner"]
    with on_import(names, lambda name: told.append((name, sys.modules[name].VALUE))):
        assert told == [("lib_early", 1)]
        module = importlib.import_module("lib_late")
        assert told[1:] == [("lib_late.inner", 2), ("lib_late", 2)]
        importlib.reload(module)
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("lib_broken")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("lib_never")
        assert len(told) == 3
    assert sys.meta_path == path
    plain = importlib.import_module("lib_early")
    assert type(module.__loader__) is type(plain.__loader__)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_it_is_not_called_after_the_block(libraries):
    told: list[str] = []
    with on_import(["lib_late"], told.append):
        pass
    importlib.import_module("lib_late")
    assert told == []


def test_an_import_in_another_thread_is_waited_for(libraries, monkeypatch: pytest.MonkeyPatch):
    gate: Any = ModuleType("lib_gate")
    gate.begun, gate.opened = threading.Event(), threading.Event()
    sys.modules["lib_gate"] = gate
    wait = importlib.import_module

    def opening(name: str) -> ModuleType:
        gate.opened.set()
        return wait(name)

    importing = threading.Thread(target=wait, args=("lib_slow",))
    importing.start()
    assert gate.begun.wait(10)
    monkeypatch.setattr("agl_tracer_otel.imports.import_module", opening, raising=False)
    told: list[tuple[str, int]] = []
    try:
        with on_import(["lib_slow"], lambda name: told.append((name, sys.modules[name].VALUE))):
            assert told == [("lib_slow", 3)]
    finally:
        gate.opened.set()
        importing.join()


def test_a_module_that_this_thread_imports_is_left_out(libraries):
    told: list[str] = []

    def early() -> None:
        with on_import(["lib_slow"], told.append):
            pass

    gate: Any = ModuleType("lib_gate")
    gate.begun, gate.opened = threading.Event(), threading.Event()
    gate.begun.set = early
    gate.opened.set()
    sys.modules["lib_gate"] = gate
    importlib.import_module("lib_slow")
    assert told == []
