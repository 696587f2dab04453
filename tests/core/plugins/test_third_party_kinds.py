"""Tests of a distribution that adds kinds, and of others that add plugins of these kinds.

They are installed in a separate directory; no code of this project refers to them.
"""

from __future__ import annotations

import json

import pytest

from agl_core.errors import ComponentTypeError, PluginBrokenError, PluginDisabledError
from agl_core.plugins import build_component, get_registry, reset_registry

KINDS = {
    "acme_kinds/__init__.py": "",
    "acme_kinds/hooks.py": """
    from agl_core.plugins import KindSpec, hookimpl

    @hookimpl
    def agl_kind():
        return [
            KindSpec("judge", contract="acme_kinds.judge:Judge", summary="scores an answer", api=1),
            KindSpec("mascot", spec="acme_kinds.mascot:MascotSpec", summary="a picture", api=1),
            KindSpec("filter", spec="acme_kinds.filters:FilterSpec", summary="text", api=1),
        ]
    """,
    "acme_kinds/judge.py": """
    class Judge:
        def score(self, answer): raise NotImplementedError
    """,
    "acme_kinds/mascot.py": """
    from dataclasses import dataclass
    from agl_core.errors import PluginBrokenError
    from agl_core.plugins import Spec, import_named

    @dataclass(frozen=True, slots=True)
    class MascotSpec(Spec):
        picture: str

        def resolve(self, record):
            found = import_named(record, self.picture)
            if not isinstance(found, str):
                raise PluginBrokenError(f"{record.key} of {record.origin}: no picture")
            return found
    """,
    "acme_kinds/filters.py": """
    from agl_core.plugins import ModuleSpec, hookspec

    class FilterHooks:
        @staticmethod
        @hookspec
        def change(text: str, loud: bool) -> str:
            '''Change a text.'''

    class FilterSpec(ModuleSpec):
        hooks = "acme_kinds.filters:FilterHooks"
    """,
}
PARTS = {
    "acme_parts/__init__.py": "",
    "acme_parts/hooks.py": """
    from acme_kinds.filters import FilterSpec
    from acme_kinds.mascot import MascotSpec
    from agl_core.plugins import ComponentSpec, hookimpl

    @hookimpl
    def agl_judge():
        return ComponentSpec(
            kind="judge",
            name="strict",
            factory="acme_parts.strict:Strict",
            config="acme_parts.strict:StrictConfig",
            summary="Scores with 0 or 1",
            api=1,
        )

    @hookimpl
    def agl_mascot():
        return MascotSpec("owl", picture="acme_parts.strict:OWL", api=1)

    @hookimpl
    def agl_filter():
        return [FilterSpec(name, module=f"acme_parts.{name}", api=1) for name in ("lower", "upper")]
    """,
    "acme_parts/strict.py": """
    from acme_kinds.judge import Judge
    from agl_core.plugins import ComponentConfig, configured_by

    OWL = "(o,o)"

    class StrictConfig(ComponentConfig):
        answer: str = "yes"

    class Strict(Judge):
        @configured_by(StrictConfig)
        def __init__(self, config):
            self.answer = config.answer

        def score(self, answer):
            return float(answer == self.answer)
    """,
    "acme_parts/lower.py": """
    from agl_core.plugins import hookimpl

    @hookimpl
    def change(text):
        return text.lower()
    """,
    "acme_parts/upper.py": """
    from agl_core.plugins import hookimpl

    @hookimpl(tryfirst=True)
    def change(text, loud):
        return text.upper() if loud else None
    """,
}


def install(site, *, kinds: bool = True) -> None:
    names = ("judge", "mascot", "filter")
    if kinds:
        site.install(
            "acme-kinds",
            entry_points={f"kind.{name}": "acme_kinds.hooks" for name in names},
            modules=KINDS,
        )
    parts = ("judge.strict", "mascot.owl", "filter.lower", "filter.upper")
    site.install("acme-parts", entry_points=dict.fromkeys(parts, "acme_parts.hooks"), modules=PARTS)


def test_a_component_of_an_added_kind_is_built_like_any_other(here):
    install(here)
    judge = build_component("judge", {"type": "strict", "answer": "no"})
    assert (judge.score("no"), judge.score("yes")) == (1.0, 0.0)
    with pytest.raises(ValueError, match=r"judge\.anwser: unknown option; did you mean 'answer'"):
        build_component("judge", {"type": "strict", "anwser": "no"})
    with pytest.raises(ComponentTypeError, match="not a Judge"):
        build_component("judge", dict)


def test_an_extension_of_an_added_kind_is_resolved_by_its_spec(here):
    install(here)
    ((record, picture),) = get_registry().resolved("mascot")
    assert (record.origin, picture) == ("acme-parts 1.0", "(o,o)")


def test_a_kind_of_modules_has_hooks_that_are_called_as_hooks(here):
    install(here)
    change = get_registry().hook("filter", "change")
    assert change(text="Ab", loud=True) == ["AB", "ab"]
    assert change(text="Ab", loud=False) == ["ab"]


def test_a_module_of_a_plugin_that_is_off_is_not_called(here, monkeypatch):
    install(here)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "filter.upper")
    reset_registry()
    assert get_registry().hook("filter", "change")(text="Ab", loud=True) == ["ab"]


def test_all_are_listed_shown_and_checked(site):
    install(site)
    rows = json.loads(site.agl("plugins", "list", "--json").stdout)
    mine = {f"{r['kind']}.{r['name']}": r["status"] for r in rows if r["dist"].startswith("acme")}
    assert mine == dict.fromkeys(
        (
            *("filter.lower", "filter.upper", "judge.strict", "mascot.owl"),
            *("kind.filter", "kind.judge", "kind.mascot"),
        ),
        "ok",
    )
    assert "strict" in site.agl("plugins", "list", "--kind", "judge").stdout
    shown = json.loads(site.agl("plugins", "show", "strict", "--json").stdout)
    assert shown["config"]["properties"]["answer"]["default"] == "yes"
    for dist in ("acme-kinds", "acme-parts"):
        done = site.agl("plugins", "doctor", "--dist", dist, "--json")
        examined = json.loads(done.stdout)
        assert {each["status"] for each in examined} == {"ok"}, examined


def test_plugins_of_a_kind_that_is_not_installed_are_broken_by_metadata(here):
    install(here, kinds=False)
    with pytest.raises(PluginBrokenError, match=r"'judge\.strict' names no kind \(kinds: store, "):
        get_registry().find("judge", "strict")


def test_plugins_of_a_kind_that_is_off_are_off(here, monkeypatch):
    install(here)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "kind.judge")
    reset_registry()
    with pytest.raises(PluginDisabledError, match=r"kind\.judge of acme-kinds 1\.0: switched off"):
        get_registry().find("judge", "strict")
    assert get_registry().find("mascot", "owl").status == "ok"


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("store", "KindSpec('store', contract='x:Y')", "the kind 'store' is the core's"),
        ("llm-server", "KindSpec('llm-server', contract='x:Y')", "already registered"),
        ("judge", "KindSpec('judge', spec='json:dumps')", "json:dumps is a function, not a sub"),
        ("judge", "KindSpec('judge')", "a kind has a contract if its specs are ComponentSpecs"),
        ("judge", "KindSpec('judge', spec='json:gone')", "has no attribute 'gone'"),
    ],
)
def test_kinds_that_cannot_be_used(here, name, source, message):
    here.install(
        "odd-kind",
        entry_points={f"kind.{name}": "odd_kind"},
        modules={
            "odd_kind.py": f"""
            from agl_core.plugins import KindSpec, hookimpl

            @hookimpl
            def agl_kind():
                return {source}

            @hookimpl(optionalhook=True)
            def agl_judge(): ...
            """
        },
    )
    here.install("odd-part", entry_points={f"{name}.x": "odd_kind"})
    with pytest.raises(PluginBrokenError) as caught:
        get_registry().component(name, "x")
    record = next(each for each in get_registry().records if each.dist == "odd-kind")
    assert message in f"{caught.value} {record.error}"
    assert "odd-kind 1.0" in str(caught.value) or name == "store"


def test_two_kinds_cannot_have_hooks_of_one_name(here):
    install(here)
    here.install(
        "rival-kinds",
        entry_points={"kind.rival": "rival_kinds"},
        modules={
            "rival_kinds.py": """
            from acme_kinds.filters import FilterHooks
            from agl_core.plugins import KindSpec, ModuleSpec, hookimpl

            class Hooks(FilterHooks): ...

            class RivalSpec(ModuleSpec):
                hooks = "rival_kinds:Hooks"

            @hookimpl
            def agl_kind():
                return KindSpec("rival", spec="rival_kinds:RivalSpec", summary="clashes", api=1)
            """
        },
    )
    assert get_registry().hook("filter", "change")(text="Ab", loud=False) == ["ab"]
    with pytest.raises(PluginBrokenError, match="of the kind 'rival' are broken: Hook 'change'"):
        get_registry().hook("rival", "change")


def test_two_distributions_with_one_kind_are_a_conflict_until_one_is_off(here, monkeypatch):
    install(here)
    here.install("rival-kinds", entry_points={"kind.judge": "acme_kinds.hooks"})
    assert {r.status for r in get_registry().of_kind("judge")} == {"conflict"}
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "rival-kinds")
    reset_registry()
    assert build_component("judge", "strict").score("yes") == 1.0
