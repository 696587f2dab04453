"""Patches that instrumentation libraries leave in place are removed.

The tests use a substitute for ``wrapt`` that patches in the same way; the tests of the tracer
plugins use the real one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from agl_tracer_otel.patches import recorded_patches


class Base:
    def inherited(self) -> str:
        return "inherited"


class Client(Base):
    def own(self) -> str:
        return "own"


@pytest.fixture
def make_loud(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Patch a method of the client as instrumentation libraries do."""
    module: Any = ModuleType("wrapt.patches")
    module.apply_patch = setattr
    monkeypatch.setitem(sys.modules, "wrapt.patches", module)

    def patch(name: str) -> None:
        original = getattr(Client, name)

        @functools.wraps(original)
        def loud(self: Client) -> str:
            return original(self).upper()

        module.apply_patch(Client, name, loud)

    return patch


def test_remaining_patches_are_removed(make_loud):
    before = dict(vars(Client))
    with recorded_patches() as patches:
        make_loud("own")
        make_loud("own")
        make_loud("inherited")
    assert (Client().own(), Client().inherited()) == ("OWN", "INHERITED")
    assert sorted(patches.restore()) == ["Client.inherited", "Client.own", "Client.own"]
    assert dict(vars(Client)) == before
    assert patches.restore() == []


def test_an_unpatched_inherited_method_leaves_no_copy(make_loud):
    before = dict(vars(Client))
    with recorded_patches() as patches:
        make_loud("inherited")
    Client.inherited = Base.inherited  # how OpenTelemetry's `unwrap` leaves it
    patches.restore()
    assert dict(vars(Client)) == before


def test_another_patch_on_top_stays(make_loud, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Client, "own", Client.own)  # so that monkeypatch restores it after the test
    with recorded_patches() as patches:
        make_loud("own")
    ours = Client.own
    monkeypatch.setattr(Client, "own", lambda self: ours(self) + "!")
    assert patches.restore() == []
    assert Client().own() == "OWN!"


def test_only_patches_within_the_block_are_recorded(make_loud, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Client, "own", Client.own)
    with recorded_patches() as patches:
        pass
    make_loud("own")
    assert patches.restore() == []
    assert Client().own() == "OWN"


def test_without_wrapt_no_patch_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "wrapt.patches", raising=False)
    with recorded_patches() as patches:
        pass
    assert patches.restore() == []
