from __future__ import annotations

import inspect

from agl_core.plugins import KIND_SPECS, Spec, import_object
from agl_core.plugins._hookspecs import EVENTS, LifecycleEvents


def public(cls: type) -> dict[str, object]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def test_every_kind_has_a_hook_whose_class_of_specs_exists():
    for name, kind in KIND_SPECS.items():
        assert set(public(kind.hookspecs())) == {f"agl_{name}"}
        assert issubclass(import_object(kind.spec), Spec)
        assert kind.summary
        assert kind.called.endswith(".")
        if kind.contract:
            assert inspect.isclass(import_object(kind.contract))


def test_events_are_those_that_can_be_named():
    assert tuple(sorted(EVENTS)) == tuple(sorted(public(LifecycleEvents)))


def test_every_event_says_what_it_is_for_and_every_parameter_too():
    for name in public(LifecycleEvents):
        hook = getattr(LifecycleEvents, name)
        doc = inspect.getdoc(hook) or ""
        assert len(doc.split()) >= 5, name
        for parameter, value in inspect.signature(hook).parameters.items():
            assert f"    {parameter}: " in doc, (name, parameter)
            assert value.annotation is not inspect.Parameter.empty
