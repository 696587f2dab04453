"""Weave's patches are recorded and undone, also after a failure."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from agl_tracer_weave import libraries

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def patcher_of(owner: Any, name: str) -> Any:
    from weave.integrations.patcher import SymbolPatcher

    return SymbolPatcher(lambda: owner, name, lambda original: lambda: "patched")


def test_patches_are_recorded_after_a_beginning_that_failed(monkeypatch: pytest.MonkeyPatch):
    library: Any = SimpleNamespace(call=lambda: "original")
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "weave.integrations.patcher", None)
        with pytest.raises(ImportError), libraries.patched_on_import():
            pytest.fail("the block began")
    with libraries.patched_on_import():
        assert patcher_of(library, "call").attempt_patch()
        assert library.call() == "patched"
    assert library.call() == "original"


def test_one_patch_that_cannot_be_undone_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    first, last = SimpleNamespace(call=lambda: "first"), SimpleNamespace(call=lambda: "last")
    with libraries.patched_on_import():
        patchers = [patcher_of(one, "call") for one in (first, last)]
        assert all(patcher.attempt_patch() for patcher in patchers)

        def undo_patch() -> bool:
            raise RuntimeError("gone")

        monkeypatch.setattr(patchers[1], "undo_patch", undo_patch)
    assert "Weave cannot undo its patch of 'call': RuntimeError('gone')" in caplog.text
    assert (first.call(), last.call()) == ("first", "last")
