from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from agl_core.errors import (
    ComponentTypeError,
    ConfigError,
    PluginBrokenError,
    PluginNotFoundError,
    StoreDataError,
)
from agl_core.plugins import build_component, resolve_component

IMPLEMENTATION = """
from typing import ClassVar
from pydantic import BaseModel, ConfigDict, Field

class Limits(BaseModel):
    model_config = ConfigDict(extra="forbid")
    spans: int = 10

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    path: str
    mode: str = "fast"
    limits: Limits = Field(default_factory=Limits)

class Shelf:
    Config = Config
    injects: ClassVar = frozenset({"mode", "clock"})

    def __init__(self, path, mode="slow", limits=None, clock=None):
        self.path, self.mode, self.limits, self.clock = path, mode, limits, clock
"""


@pytest.fixture
def shelf(here, spec_source):
    """Install a plugin ``store.shelf`` and return its class."""
    hooks = spec_source(
        "store", name="shelf", factory="shelf_impl:Shelf", config="shelf_impl:Config"
    )
    here.install(
        "agl-store-shelf",
        entry_points={"store.shelf": "shelf_hooks"},
        modules={"shelf_hooks.py": hooks, "shelf_impl.py": IMPLEMENTATION},
    )
    import shelf_impl  # pyright: ignore[reportMissingImports]

    return shelf_impl.Shelf


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


class TestSpecs:
    def test_all_forms_mean_the_same(self, shelf, tmp_path):
        toml = write(tmp_path / "store.toml", 'type = "shelf"\npath = "p"\n[limits]\nspans = 3\n')
        options = {"path": "p", "limits": {"spans": 3}}
        specs = [
            {"type": "shelf", **options},
            {"type": "agl-store-shelf:shelf", **options},
            {"type": "shelf_impl:Shelf", **options},
            {"type": "shelf_impl.Shelf", **options},
            {"type": shelf, **options},
            toml,
            Path(toml),
            write(tmp_path / "s.yaml", "type: shelf\npath: p\nlimits: {spans: 3}\n"),
            write(tmp_path / "s.json", '{"type": "shelf", "path": "p", "limits": {"spans": 3}}'),
        ]
        for spec in specs:
            made = build_component("store", spec, expected=shelf)
            assert type(made) is shelf
            assert (made.path, made.mode, made.limits.spans) == ("p", "fast", 3)

    def test_without_options(self):
        for spec in (Plain, lambda: Plain(), functools.partial(Plain, size=1), f"{__name__}:Plain"):
            sys.modules.setdefault(__name__, sys.modules[Plain.__module__])
            assert type(build_component("store", spec, expected=Plain)) is Plain

    def test_an_instance_is_used_unchanged(self):
        made = Plain()
        assert build_component("store", made, expected=Plain) is made

    def test_an_instance_may_be_named_by_its_dotted_path(self, shelf):
        module = sys.modules[shelf.__module__]
        module.one = shelf("p")  # pyright: ignore[reportAttributeAccessIssue]
        assert build_component("store", "shelf_impl:one", expected=shelf) is module.one
        with pytest.raises(ConfigError, match="is an instance already and takes no options"):
            build_component("store", {"type": "shelf_impl:one", "path": "q"}, expected=shelf)
        with pytest.raises(ComponentTypeError, match="made a str, which is not a Plain"):
            build_component("store", "json:__name__", expected=Plain)

    def test_the_table_given_is_not_changed(self, shelf):
        spec = {"type": "shelf", "path": "p"}
        build_component("store", spec, expected=shelf)
        assert spec == {"type": "shelf", "path": "p"}

    def test_none_takes_the_default(self):
        assert isinstance(build_component("store", None, default=Plain, expected=Plain), Plain)
        given = Plain()
        assert build_component("store", None, default=given, expected=Plain) is given
        with pytest.raises(ConfigError, match="no store was given"):
            build_component("store", None, expected=Plain)

    def test_a_table_without_a_type_takes_the_default_type(self, shelf):
        made = build_component("store", {"path": "p"}, default="shelf", expected=shelf)
        assert made.path == "p"

    def test_a_strategy_may_be_named_by_name(self):
        made = build_component("execution", {"name": Plain, "size": 2}, expected=Plain)
        assert made.size == 2
        with pytest.raises(ConfigError, match="has no 'type'"):
            build_component("store", {"name": Plain}, expected=Plain)

    @pytest.mark.parametrize("spec", [42, 1.5, [1], Path, b"x"])
    def test_a_value_that_is_not_a_spec_is_rejected(self, spec):
        with pytest.raises((ConfigError, ComponentTypeError)) as caught:
            build_component("store", spec, expected=Plain)
        assert str(caught.value).startswith("store")

    def test_an_instance_of_another_class_is_rejected(self):
        class Callable:
            def __call__(self):
                raise AssertionError("called")

        with pytest.raises(
            ConfigError, match="cannot make a component of kind store from a Callable"
        ):
            build_component("store", Callable(), expected=Plain)

    def test_a_table_without_a_type_names_what_is_installed(self):
        with pytest.raises(ValueError, match=r"store: has no 'type' .*\(installed: .*memory"):
            build_component("store", {"path": "x"}, expected=Plain)


class Plain:
    def __init__(self, size=0):
        self.size = size


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "path", "message"),
        [
            ({"path": "p", "pth": 1}, "store.pth", "unknown option; did you mean 'path'?"),
            ({"path": "p", "zzz": 1}, "store.zzz", "unknown option (known: limits, mode, path)"),
            ({}, "store.path", "is missing"),
            ({"path": 3}, "store.path", "should be a valid string, not 3"),
            ({"path": "p", "limits": {"spans": "many"}}, "store.limits.spans", "not 'many'"),
            (
                {"path": "p", "limits": {"span": 1}},
                "store.limits.span",
                "unknown option; did you mean 'spans'?",
            ),
            ({"path": "p", "limits": 3}, "store.limits", "not 3"),
        ],
    )
    def test_a_wrong_option_is_named_by_its_path(self, shelf, options, path, message):
        for name in ("shelf", "shelf_impl:Shelf"):
            with pytest.raises(ConfigError) as caught:
                build_component("store", {"type": name, **options}, expected=shelf)
            assert caught.value.path == path
            assert str(caught.value).startswith(f"{path}: ")
            assert message in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_every_mistake_is_named(self, shelf):
        with pytest.raises(ConfigError) as caught:
            build_component("store", {"type": "shelf", "mode": 1, "x": 2}, expected=shelf)
        text = str(caught.value)
        assert [name in text for name in ("store.path:", "store.mode:", "store.x:")] == [True] * 3

    def test_where_the_spec_stands_is_the_callers_to_say(self, shelf):
        with pytest.raises(ConfigError, match=r"^trainer\.store\.path: is missing"):
            build_component("store", "shelf", expected=shelf, path="trainer.store")

    def test_a_secret_is_not_repeated(self):
        class Config(BaseModel):
            model_config = ConfigDict(extra="forbid")
            api_key: int
            other: SecretStr

        class Locked:
            def __init__(self, **_): ...

        Locked.Config = Config  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ConfigError) as caught:
            build_component("store", {"type": Locked, "api_key": "hunter2", "other": "x"})
        assert "hunter2" not in str(caught.value)

    def test_options_of_a_class_without_a_model_are_checked_against_its_signature(self):
        with pytest.raises(
            ConfigError, match=r"^store\.sise: .*Plain does not take these"
        ) as caught:
            build_component("store", {"type": Plain, "sise": 1}, expected=Plain)
        assert "did you mean 'size'?" in str(caught.value)
        assert isinstance(caught.value.__cause__, TypeError)

    def test_a_plugin_without_a_model_takes_no_options(self, here, spec_source):
        here.install(
            "agl-store-x",
            entry_points={"store.x": "noconf_hooks"},
            modules={"noconf_hooks.py": spec_source("store", name="x", factory="json:JSONDecoder")},
        )
        with pytest.raises(ConfigError, match=r"^store\.size: 'x' takes no options"):
            build_component("store", {"type": "x", "size": 1})

    @pytest.mark.parametrize(
        ("dotted", "message"),
        [
            ("agl_no_such_module:X", "there is no module 'agl_no_such_module' on the import path"),
            ("json.nope:X", "there is no module 'json.nope' on the import path"),
            ("json:JSONDecodr", "json has no 'JSONDecodr'; did you mean 'JSONDecoder'?"),
        ],
    )
    def test_a_dotted_path_to_nothing(self, dotted, message):
        with pytest.raises(ConfigError) as caught:
            build_component("store", {"type": dotted}, expected=Plain)
        assert str(caught.value).startswith("store: ")
        assert message in str(caught.value)

    def test_a_module_that_fails_is_not_a_module_that_is_missing(self, here):
        here.install("x", modules={"needs_more.py": "import agl_no_such_module"})
        with pytest.raises(
            ConfigError, match="module 'needs_more' does not import: ModuleNotFound"
        ):
            build_component("store", "needs_more:X", expected=Plain)

    def test_what_is_made_has_to_be_of_the_kind(self):
        with pytest.raises(
            TypeError, match=r"^store: .*lambda.* made an int, which is not a Plain"
        ):
            build_component("store", lambda: 3, expected=Plain)
        with pytest.raises(ComponentTypeError, match="which is not a LightningStore"):
            build_component("store", Plain)

    def test_an_unknown_name(self):
        with pytest.raises(
            PluginNotFoundError, match="no store 'memroy' is installed; did you mean"
        ):
            build_component("store", "memroy")


class TestFactoriesThatFail:
    @pytest.mark.parametrize(
        ("body", "error", "message"),
        [
            ("raise ValueError('path is\\n empty')", ConfigError, "store: path is empty"),
            ("raise KeyError('k')", PluginBrokenError, "does not start: KeyError: 'k'"),
            ("raise SystemExit(2)", PluginBrokenError, "does not start: SystemExit: 2"),
            (
                "import agl_no_such_module",
                PluginBrokenError,
                "No module named 'agl_no_such_module'",
            ),
            ("raise KeyboardInterrupt", KeyboardInterrupt, ""),
            ("raise StoreDataError('corrupt')", StoreDataError, "corrupt"),
            ("raise InvalidArgumentError('too many')", ConfigError, "store: too many"),
        ],
    )
    def test_a_plugin(self, here, spec_source, body, error, message):
        impl = "from agl_core.errors import InvalidArgumentError, StoreDataError\n"
        impl += f"class Store:\n    def __init__(self):\n        {body}\n"
        here.install(
            "agl-store-x",
            version="4.0",
            entry_points={"store.x": "fails_hooks"},
            modules={
                "fails_hooks.py": spec_source("store", name="x", factory="fails_impl:Store"),
                "fails_impl.py": impl,
            },
        )
        with pytest.raises(error) as caught:
            build_component("store", "x")
        assert message in str(caught.value)
        if error is PluginBrokenError:
            assert "store.x of agl-store-x 4.0" in str(caught.value)
            assert "try to upgrade agl-store-x" in str(caught.value)
            assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("attribute", ["factory", "config"])
    def test_a_plugin_whose_implementation_does_not_import(self, here, spec_source, attribute):
        where = {"factory": "json:JSONDecoder", attribute: "broken_impl:Thing"}
        here.install(
            "agl-store-x",
            entry_points={"store.x": "impl_hooks"},
            modules={
                "impl_hooks.py": spec_source("store", name="x", **where),
                "broken_impl.py": "import agl_no_such_module",
            },
        )
        with pytest.raises(
            PluginBrokenError, match="No module named 'agl_no_such_module'"
        ) as caught:
            build_component("store", "x")
        assert isinstance(caught.value.__cause__, ImportError)

    def test_a_class_of_the_users_own_raises_what_it_raises(self):
        class Own:
            def __init__(self):
                raise KeyError("k")

        with pytest.raises(KeyError) as caught:
            build_component("store", Own)
        assert "while building store with" in caught.value.__notes__[0]


class Wants:
    injects: ClassVar[frozenset[str]] = frozenset({"store", "n_runners"})

    def __init__(self, n_runners=1, store=None, port=0):
        self.n_runners, self.store, self.port = n_runners, store, port


class TestInjection:
    def test_only_what_is_declared_is_passed(self):
        made = build_component("x", Wants, inject={"store": "s", "port": 9}, expected=Wants)
        assert (made.n_runners, made.store, made.port) == (1, "s", 0)

    def test_what_the_user_set_wins(self):
        inject = {"n_runners": 8}
        made = build_component("x", {"type": Wants, "n_runners": 4}, inject=inject, expected=Wants)
        assert made.n_runners == 4

    def test_what_is_injected_wins_over_a_default_of_the_model(self, shelf):
        inject = {"mode": "given", "clock": "c", "limits": "never"}
        made = build_component(
            "store", {"type": "shelf", "path": "p"}, inject=inject, expected=shelf
        )
        assert (made.mode, made.clock, made.limits.spans) == ("given", "c", 10)

    def test_a_required_option_may_be_injected(self):
        class Config(BaseModel):
            model_config = ConfigDict(extra="forbid")
            injects: ClassVar[frozenset[str]] = frozenset({"size"})
            size: int = Field(ge=1)

        class Sized(Plain):
            pass

        Sized.Config = Config  # pyright: ignore[reportAttributeAccessIssue]
        assert build_component("x", Sized, inject={"size": 5}, expected=Sized).size == 5
        with pytest.raises(ConfigError, match=r"^x\.size: is missing"):
            build_component("x", Sized, expected=Sized)

    def test_a_function_gets_nothing(self):
        made = build_component("x", lambda: Wants(), inject={"store": "s"}, expected=Wants)
        assert made.store is None


class TestResolving:
    def test_it_imports_the_config_and_not_the_implementation(self, here, spec_source):
        conf = "from pydantic import BaseModel\n"
        conf += "class Config(BaseModel, extra='forbid'):\n    n: int = 0\n"
        here.install(
            "agl-store-x",
            entry_points={"store.x": "heavy_hooks"},
            modules={
                "heavy_hooks.py": spec_source(
                    "store", name="x", factory="heavy_impl:Store", config="heavy_conf:Config"
                ),
                "heavy_conf.py": conf,
                "heavy_impl.py": "raise RuntimeError('imported')",
            },
        )
        blueprint = resolve_component("store", {"type": "x", "n": 1})
        assert blueprint.source == "agl-store-x 1.0"
        assert "heavy_impl" not in sys.modules
        with pytest.raises(ConfigError, match=r"^store\.m: unknown option"):
            resolve_component("store", {"type": "x", "m": 1})
        with pytest.raises(PluginBrokenError, match="RuntimeError: imported"):
            blueprint.build()
