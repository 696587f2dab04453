from __future__ import annotations

import sys

import pytest

from agl_core.errors import (
    PluginBrokenError,
    PluginConflictError,
    PluginIncompatibleError,
    PluginNotFoundError,
)
from agl_core.plugins import CommandSpec, ComponentSpec, get_registry, reset_registry
from agl_core.plugins._registry import remedy

HOOKED = """
from agl_core.plugins import ComponentSpec, hookimpl

@hookimpl
def agl_store():
    return {returned}
"""


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("store", "disk", "no store 'disk' is installed: pip install acme-disk"),
        ("algorithm", "steer", "no algorithm 'steer' is installed: pip install acme-steer"),
        ("llm_server", "fast", "pip install acme-fast"),
        ("store", "diks", "did you mean 'disk'? pip install acme-disk"),
        ("command", "versoin", "did you mean 'version'? (installed: plugins, version)"),
        ("command", "zzz", "no command 'zzz' is installed (installed: plugins, version)"),
        ("llm_server", "zzz", "nor any other llm_server; see `agl plugins list --all`"),
        ("shop", "x", "there is no kind 'shop' (kinds: store,"),
        ("store", "agl-x:memory", "no store 'memory' of agl-x is installed; see"),
        ("store", "Acme_Tree:tree", "'tree' is installed: pip install acme-tree"),
    ],
)
def test_plugins_that_are_not_installed(kind, name, message, acme):
    with pytest.raises(PluginNotFoundError) as caught:
        acme.find(kind, name)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_conflict_is_settled_by_a_pin(here, spec_source):
    for dist in ("one", "two"):
        source = spec_source("store", name="x", factory=f"{dist}_store:Store")
        here.install(
            dist, entry_points={"store.x": f"{dist}_hooks"}, modules={f"{dist}_hooks.py": source}
        )
    registry = get_registry()
    with pytest.raises(PluginConflictError, match=r"pin one, e\.g\. 'one:x'"):
        registry.find("store", "x")
    record, spec = registry.component("store", "Two:x")
    assert record.dist == "two"
    assert spec.factory == "two_store:Store"


def test_a_pin_selects_another_plugin_with_the_name_of_a_listed_one(here, spec_source):
    source = spec_source("command", name="version", target="mine:version")
    here.install(
        "mine", entry_points={"command.version": "mine_hooks"}, modules={"mine_hooks.py": source}
    )
    registry = get_registry()
    spec = registry.load(registry.find("command", "mine:version"))
    assert isinstance(spec, CommandSpec)
    assert spec.target == "mine:version"
    assert registry.find("command", "version").dist == "agl-cli-kit"


def test_plugins_whose_metadata_are_incompatible_or_broken(here):
    here.install("newer", entry_points={"store.newer": "newer"}, requires=["agl-core>=9"])
    here.install("badly", entry_points={"store.badly": "no module"})
    with pytest.raises(PluginIncompatibleError, match=r"^store\.newer of newer 1\.0: requires "):
        get_registry().find("store", "newer")
    with pytest.raises(PluginBrokenError, match=r"^store\.badly of badly 1\.0: entry p"):
        get_registry().find("store", "badly")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import agl_nothing_of_this_name", "ModuleNotFoundError: No module named 'agl_nothing_of"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise AssertionError('no')", "AssertionError: no"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("x = 1", "has no @hookimpl function agl_store"),
        ("def agl_store(): ...", "has no @hookimpl function agl_store"),
        (
            "from agl_core.plugins import hookimpl\n@hookimpl\ndef agl_stroe(): ...",
            "unknown hook 'agl_stroe'",
        ),
        (
            "from agl_core.plugins import hookimpl\n@hookimpl\ndef agl_store(extra): ...",
            "definition: agl_store(extra)",
        ),
        (HOOKED.format(returned="1 / 0"), "ZeroDivisionError"),
        (HOOKED.format(returned="exit(5)"), "SystemExit: 5"),
        (HOOKED.format(returned="None"), "NoneType and not ComponentSpec"),
        (HOOKED.format(returned="{'name': 'x'}"), "dict and not ComponentSpec"),
        (
            HOOKED.format(returned="ComponentSpec(kind='tracer', name='x', factory='a:B')"),
            "a spec of kind 'tracer' and not 'store'",
        ),
        (
            HOOKED.format(returned="ComponentSpec(kind='store', name='y', factory='a:B')"),
            "a spec of name 'y' and not 'x'",
        ),
    ],
)
def test_a_plugin_that_does_not_load(here, source, message):
    here.install(
        "agl-store-x",
        version="3.1",
        entry_points={"store.x": "agl_store_x_hooks"},
        modules={"agl_store_x_hooks.py": source},
    )
    registry = get_registry()
    record = registry.find("store", "x")
    with pytest.raises(PluginBrokenError) as caught:
        registry.load(record)
    text = str(caught.value)
    assert message in text
    assert "store.x of agl-store-x 3.1" in text
    assert "\n" not in text
    assert record.status == "ok"  # metadata alone does not show the fault


def test_the_cause_is_chained(here):
    here.install(
        "agl-store-x", entry_points={"store.x": "gone_module"}, modules={"unrelated.py": ""}
    )
    with pytest.raises(PluginBrokenError, match="try to upgrade agl-store-x") as caught:
        get_registry().component("store", "x")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_ctrl_c_while_a_plugin_loads_is_ctrl_c(here):
    here.install(
        "agl-store-x",
        entry_points={"store.x": "ctrl_c"},
        modules={"ctrl_c.py": "raise KeyboardInterrupt"},
    )
    with pytest.raises(KeyboardInterrupt):
        get_registry().component("store", "x")


def test_loading_imports_the_hook_module_once_and_the_implementation_not_at_all(here, spec_source):
    source = spec_source("store", name="x", factory="lazy_impl:Store", config="lazy_conf:Config")
    here.install(
        "agl-store-x",
        entry_points={"store.x": "lazy_hooks"},
        modules={
            "lazy_hooks.py": "import agl_store_x_count\nagl_store_x_count.n += 1\n" + source,
            "agl_store_x_count.py": "n = 0",
            "lazy_impl.py": "raise RuntimeError",
            "lazy_conf.py": "raise RuntimeError",
        },
    )
    registry = get_registry()
    specs = [registry.component("store", "x")[1] for _ in range(3)]
    assert specs[0] is specs[2]
    assert isinstance(specs[0], ComponentSpec)
    assert sys.modules["agl_store_x_count"].n == 1
    assert "lazy_impl" not in sys.modules
    assert "lazy_conf" not in sys.modules


@pytest.mark.usefixtures("acme")
def test_hints_do_not_say_to_install_what_is_installed(here, monkeypatch):
    here.install("acme-disk", entry_points={"store.disk": "hooks"})
    here.install("acme-tree", entry_points={"store.older": "hooks"})
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "store.disk")
    reset_registry()
    assert remedy("store", "disk") == "store.disk is disabled"
    with pytest.raises(PluginNotFoundError, match="pip install --upgrade acme-tree"):
        get_registry().find("store", "tree")
