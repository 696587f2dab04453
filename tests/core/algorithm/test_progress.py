"""Progress is logged as lines, and shown by a plugin in a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from agl_core.algorithm import show_progress
from agl_core.plugins import ProgressSpec, hookimpl

shown: list[tuple[object, ...]] = []


@hookimpl
def agl_progress() -> ProgressSpec:
    return ProgressSpec("acme", show="acme_display:show", api=1)


class Reporter:
    def update(self, done: int, note: str = "") -> None:
        shown.append((done, note))


@contextmanager
def show(description: str, total: int) -> Iterator[Reporter]:
    shown.append((description, total))
    yield Reporter()
    shown.append(("end",))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plugin(agl_registry, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a display, and nothing else that shows progress."""
    hooks, display = ModuleType("acme_hooks"), ModuleType("acme_display")
    hooks.agl_progress, display.show = agl_progress, show  # pyright: ignore
    for module in (hooks, display):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    agl_registry.records[:] = [r for r in agl_registry.records if r.kind != "progress"]
    agl_registry.add("progress.acme", "acme_hooks")
    shown.clear()
    return display


def work(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, steps: int = 100) -> None:
    """Report steps of half a second each."""
    monkeypatch.setattr(sys, "stderr", stderr)
    clock = [0.0]
    monkeypatch.setattr("agl_core.algorithm._progress.time.monotonic", lambda: clock[0])
    with show_progress("work", steps) as progress:
        for done in range(1, steps + 1):
            clock[0] += 0.5
            progress.update(done)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().strip() for record in caplog.records]


LOGGED = [f"work: {n}/100" for n in (20, 40, 60, 80, 100)]


@pytest.mark.usefixtures("plugin")
def test_lines_are_logged_at_intervals_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="agl_core.algorithm"):
        work(monkeypatch, io.StringIO())
    assert lines(caplog) == LOGGED
    assert shown == []


@pytest.mark.usefixtures("plugin")
def test_a_plugin_shows_it_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="agl_core.algorithm"):
        work(monkeypatch, Terminal(), steps=2)
    assert shown == [("work", 2), (1, ""), (2, ""), ("end",)]
    assert lines(caplog) == []


def test_a_terminal_without_a_plugin_gets_lines(
    agl_registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agl_registry.records[:] = []
    agl_registry.add("hook.other", "no_module_of_this_name")
    with caplog.at_level("INFO", logger="agl_core.algorithm"):
        work(monkeypatch, Terminal())
    assert lines(caplog) == LOGGED


def test_a_plugin_that_does_not_load_is_named_and_lines_are_logged(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(plugin, "show")
    with caplog.at_level("INFO", logger="agl_core.algorithm"):
        work(monkeypatch, Terminal())
    first, *others = lines(caplog)
    assert first.startswith("progress is not shown by progress.acme: ")
    assert others == LOGGED


def test_what_the_work_raises_passes_through(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyError, match="the work's"), show_progress("work", 2):
        raise KeyError("the work's")
