from __future__ import annotations

import pytest

from agl_core.errors import PluginDisabledError
from agl_core.plugins import Registry, Switches

OURS = {"agl-store-one", "agl-store-two"}


@pytest.fixture(autouse=True)
def two_plugins(here):
    here.install("agl-store-one", entry_points={"store.one": "one_hooks", "app.one": "one_app"})
    here.install("agl-store-two", entry_points={"store.two": "two_hooks"})


def off(registry: Registry | None = None) -> set[str]:
    registry = registry or Registry.discover()
    mine = [r for r in registry.records if r.dist in OURS]
    return {r.key for r in mine if r.status == "disabled"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", set()),
        (" , ", set()),
        ("store.one", {"store.one"}),
        ("agl-store-one", {"store.one", "app.one"}),
        ("AGL_store.one", {"store.one", "app.one"}),
        ("agl-store-one:one", {"store.one", "app.one"}),
        ("agl-store-one:store.one", {"store.one"}),
        ("store.one, store.two", {"store.one", "store.two"}),
        ("*", {"store.one", "store.two", "app.one"}),
    ],
)
def test_what_a_selector_switches_off(monkeypatch, value, expected):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", value)
    assert off() == expected


def test_an_allow_list_switches_off_all_else(monkeypatch):
    monkeypatch.setenv("AGL_PLUGINS", "store.two")
    registry = Registry.discover()
    assert off(registry) == {"store.one", "app.one"}
    with pytest.raises(
        PluginDisabledError, match=r"^store\.one of agl-store-one 1\.0: not in AGL_P"
    ):
        registry.find("store", "one")
    assert not registry.usable("command")


def test_the_project_file_counts_from_below_too(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.agl]\ndisable-plugins = ["store.two"]\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (below / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    monkeypatch.chdir(below)
    registry = Registry.discover()
    assert off(registry) == {"store.two"}
    (record,) = [r for r in registry.records if r.key == "store.two"]
    file = tmp_path / "pyproject.toml"
    assert record.error == f"switched off by [tool.agl] disable-plugins of {file}"


def test_a_project_file_may_begin_with_a_byte_order_mark(tmp_path):
    text = '[tool.agl]\ndisable-plugins = ["store.two"]\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8-sig")
    found = Switches.read({}, tmp_path)
    assert (list(found.disabled), found.problems) == (["store.two"], ())


def test_the_variable_adds_to_the_project_file_and_replaces_its_list(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.agl]\ndisable-plugins = ["store.two"]\nplugins = ["store.two"]\n'
    )
    assert off() == {"store.one", "store.two", "app.one"}
    monkeypatch.setenv("AGL_PLUGINS", "agl-store-one")
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "app.one")
    assert off() == {"store.two", "app.one"}


def test_an_empty_list_in_the_project_file_allows_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.agl]\nplugins = []\n")
    assert off() == {"store.one", "store.two", "app.one"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.agl]\ndisable-plugins = 'store.one'\n", "is not a list of names"),
        ("[tool.agl]\nplugins = [1]\n", "is not a list of names"),
        ("[tool.agl]\nplugin = []\n", "is not known (known: disable-plugins, plugins)"),
        ("[tool.agl\n", "is not valid TOML"),
    ],
)
def test_a_bad_project_file_is_a_warning(tmp_path, text, problem):
    (tmp_path / "pyproject.toml").write_text(text)
    registry = Registry.discover()
    assert off(registry) == set()
    assert any(problem in warning for warning in registry.warnings), registry.warnings


def test_names_of_nothing_installed_are_a_warning(monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "store.one,store.gone,agl-store-gone")
    assert Registry.discover().warnings == (
        "AGL_DISABLE_PLUGINS names 'store.gone', which is not installed",
        "AGL_DISABLE_PLUGINS names 'agl-store-gone', which is not installed",
    )


def test_a_disabled_plugin_cannot_be_asked_for(monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "*")
    with pytest.raises(PluginDisabledError, match="switched off by AGL_DISABLE_PLUGINS"):
        Registry.discover().find("store", "one")


def test_switching_one_rival_off_settles_a_conflict(here, monkeypatch):
    here.install("rival", entry_points={"store.one": "rival_hooks"})
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "agl-store-one:store.one")
    assert Registry.discover().find("store", "one").dist == "rival"


def test_a_deleted_working_directory_is_ignored(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Switches.read({}) == Switches({})
