from __future__ import annotations

import inspect

from agl_core.plugins import KINDS
from agl_core.plugins._hookspecs import EVENTS, KindHooks, LifecycleEvents


def public(cls: type) -> dict[str, object]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def test_every_kind_has_a_hook():
    assert set(public(KindHooks)) == {f"agl_{kind}" for kind in KINDS}


def test_events_are_those_that_can_be_named():
    assert tuple(sorted(EVENTS)) == tuple(sorted(public(LifecycleEvents)))


def test_every_hook_says_what_it_is_for_and_every_parameter_too():
    for cls in (KindHooks, LifecycleEvents):
        for name in public(cls):
            hook = getattr(cls, name)
            doc = inspect.getdoc(hook) or ""
            assert len(doc.split()) >= 5, name
            for parameter, value in inspect.signature(hook).parameters.items():
                assert f"    {parameter}: " in doc, (name, parameter)
                assert value.annotation is not inspect.Parameter.empty
