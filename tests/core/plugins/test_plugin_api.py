"""Tests of the plugin API's version: what a spec says, and what a core of another version does."""

from __future__ import annotations

import json
import warnings

import pytest

from agl_core.errors import PluginBrokenError, PluginIncompatibleError
from agl_core.plugins import PluginApiWarning, _api, get_registry

NEXT_CORE = """
import sys

if "agl_core" not in sys.modules:  # the interpreter of every process of this test
    from agl_core.plugins import _api

    _api.PLUGIN_API_VERSION = 2
"""


def install(site, spec_source, **arguments: object) -> None:
    source = spec_source("hook", name="x", module="api_listener", **arguments)
    site.install(
        "agl-x",
        entry_points={"hook.x": "api_hooks"},
        modules={
            "api_hooks.py": source,
            "api_listener.py": """
            from agl_core.plugins import hookimpl

            @hookimpl
            def run_started(mode): ...
            """,
        },
    )


def examined(site) -> dict[str, object]:
    done = site.agl("plugins", "doctor", "--dist", "agl-x", "--json")
    (one,) = json.loads(done.stdout)
    return one | {"code": done.returncode}


def test_a_plugin_that_states_its_version_is_fine(site, spec_source):
    install(site, spec_source, api=1)
    one = examined(site)
    assert (one["status"], one["note"], one["code"]) == ("ok", "", 0)


def test_a_plugin_that_states_none_counts_as_1_and_the_doctor_asks_for_it(site, spec_source):
    install(site, spec_source)
    one = examined(site)
    assert (one["status"], one["code"]) == ("warning", 0)
    assert one["note"] == (
        "its spec does not say which plugin API it is written for, which counts as 1: add api=1"
    )
    assert site.agl("plugins", "doctor", "--dist", "agl-x", "--strict").returncode == 1
    only = {"AGL_PLUGINS": "agl-x,agl-doctor"}
    findings = json.loads(site.agl("doctor", "--json", **only).stdout)
    (mine,) = [finding for finding in findings if finding["ids"] == ["hook.x"]]
    assert mine["severity"] == "warning"
    assert mine["what"].startswith("hook.x of agl-x 1.0: its spec does not say")
    assert mine["todo"] == "tell the author of agl-x"


@pytest.mark.parametrize("arguments", [{"api": 1}, {}], ids=["stated", "not stated"])
def test_a_core_of_api_2_sees_that_a_plugin_was_written_for_1(site, spec_source, arguments):
    install(site, spec_source, **arguments)
    (site.path / "sitecustomize.py").write_text(NEXT_CORE)
    one = examined(site)
    assert (one["status"], one["code"]) == ("warning", 0)
    if arguments:
        assert one["note"] == (
            "it is written for plugin API 1, this core has 2 and still serves the older one"
        )
    shown = site.agl("plugins", "show", "hook.x", "--json")
    assert json.loads(shown.stdout)["spec"]["api"] == (1 if arguments else None)


@pytest.mark.parametrize("arguments", [{"api": 1}, {}], ids=["stated", "not stated"])
def test_a_core_that_no_longer_serves_1_refuses_it(here, spec_source, arguments, monkeypatch):
    install(here, spec_source, **arguments)
    monkeypatch.setattr(_api, "PLUGIN_API_VERSION", 3)
    monkeypatch.setattr(_api, "OLDEST_PLUGIN_API_VERSION", 2)
    with pytest.raises(PluginIncompatibleError) as caught:
        get_registry().load(get_registry().find("hook", "x"))
    assert str(caught.value) == (
        "hook.x of agl-x 1.0 is written for plugin API 1, this core has 2 to 3: upgrade agl-x"
    )


@pytest.mark.parametrize("api", [0, -1, True, "1", 1.0])
def test_what_is_not_a_version_is_broken(here, spec_source, api):
    install(here, spec_source, api=api)
    record = get_registry().find("hook", "x")
    with pytest.raises(PluginBrokenError, match="which is not a version"):
        get_registry().load(record)


def test_a_newer_version_is_incompatible(here, spec_source):
    install(here, spec_source, api=2)
    with pytest.raises(PluginIncompatibleError, match="upgrade agl-core"):
        get_registry().load(get_registry().find("hook", "x"))


RENAMED = {
    "renamed.py": """
    from agl_core.plugins import KindSpec, ModuleSpec, PluginApiWarning, hookimpl, hookspec

    class FilterHooks:
        @staticmethod
        @hookspec(warn_on_impl_args={"words": PluginApiWarning("change: 'words' is now 'text'")})
        def change(text, words): ...

    class FilterSpec(ModuleSpec):
        hooks = "renamed:FilterHooks"

    @hookimpl
    def agl_kind():
        return KindSpec("filter", spec="renamed:FilterSpec", summary="changes a text", api=1)

    @hookimpl
    def agl_filter():
        return [FilterSpec(name, module=f"{name}_filter", api=1) for name in ("old", "new")]
    """,
    "old_filter.py": """
    from agl_core.plugins import hookimpl

    @hookimpl
    def change(words):
        return words.lower()
    """,
    "new_filter.py": """
    from agl_core.plugins import hookimpl

    @hookimpl
    def change(text):
        return text.upper()
    """,
}
ENTRIES = ("kind.filter", "filter.old", "filter.new")


def test_a_plugin_with_a_renamed_parameter_works_and_warns(here):
    here.install("agl-x", entry_points=dict.fromkeys(ENTRIES, "renamed"), modules=RENAMED)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        change = get_registry().hook("filter", "change")
    assert change(text="Ab", words="Ab") == ["AB", "ab"]
    assert {(each.category, str(each.message)) for each in raised} == {
        (PluginApiWarning, "change: 'words' is now 'text'")
    }
    assert {each.filename for each in raised} == {str(here.path / "old_filter.py")}


def test_the_doctor_names_the_plugin_with_a_renamed_parameter(site):
    site.install("agl-x", entry_points=dict.fromkeys(ENTRIES, "renamed"), modules=RENAMED)
    found = json.loads(site.agl("plugins", "doctor", "--dist", "agl-x", "--json").stdout)
    assert {each["key"]: (each["status"], each["note"]) for each in found} == {
        "filter.new": ("ok", ""),
        "filter.old": ("warning", "change: 'words' is now 'text'"),
        "kind.filter": ("ok", "the kind 'kind' is experimental"),
    }
