"""Everything public is described where readers look: names, hooks, options of components."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec

import pytest

import agl_core
from agl_core.plugins import LifecycleEvents
from devtools import public_names

MODULES = public_names.public_modules()
INSTALLED = [module for module in MODULES if find_spec(module.name.partition(".")[0])]


def test_the_names_that_are_read_from_the_source_are_those_of_the_modules():
    for module in INSTALLED:
        assert module.names == tuple(sorted(import_module(module.name).__all__)), module.name
    assert sorted(public_names.root_exports()) == vars(agl_core)["__all__"]


def test_every_public_class_and_function_has_a_docstring():
    found = {
        f"{module.name}.{name}": getattr(import_module(module.name), name)
        for module in INSTALLED
        for name in module.names
    }
    described = {
        name: bool(inspect.getdoc(thing))
        for name, thing in found.items()
        if inspect.isclass(thing) or inspect.isroutine(thing)
    }
    assert len(described) > len(INSTALLED)
    assert not [name for name, there in described.items() if not there]


@pytest.mark.parametrize("family", [LifecycleEvents], ids=lambda family: family.__name__)
def test_every_hook_and_each_of_its_parameters_is_described(family: type):
    hooks = {name: getattr(family, name) for name in vars(family) if not name.startswith("_")}
    assert len(hooks) >= 10
    for name, hook in hooks.items():
        text = inspect.getdoc(hook) or ""
        assert text, name
        missing = [p for p in inspect.signature(hook).parameters if f"    {p}: " not in text]
        assert not missing, f"{name}: {missing}"


def test_every_option_of_every_component_is_described():
    options = list(public_names.options())
    assert len({option.model for option in options}) > 20
    assert not [f"{o.model}.{o.name}" for o in options if not o.description]


def test_an_option_without_a_description_is_found(tmp_path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "plugins/agl_store_x/src/agl_store_x"
    package.mkdir(parents=True)
    (package / "hooks.py").write_text('ComponentSpec(config="agl_store_x.config:XConfig")')
    (package / "config.py").write_text(
        'class Base(ComponentConfig):\n    url: str\n    """Where."""\n'
        "class XConfig(Base):\n    path: str\n"
    )
    monkeypatch.setattr(public_names, "ROOT", tmp_path)
    found = {option.name: option.description for option in public_names.options()}
    assert found == {"url": "Where.", "path": ""}
