"""Tests of constructors that take a config model, or the model's fields as arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from agl_core.errors import ConfigError
from agl_core.plugins import (
    ComponentConfig,
    build_component,
    configured_by,
    option_descriptions,
)
from agl_train import lightning_cli


class Client:
    """A live object."""


class ShelfConfig(ComponentConfig):
    injects: ClassVar[frozenset[str]] = frozenset({"n_runners"})

    path: str = Field(min_length=1, kw_only=False)
    """The file of the shelf."""
    client: Client | None = Field(default=None, exclude=True, kw_only=False)
    """Reads the file."""
    mode: Literal["fast", "safe"] = "fast"
    n_runners: int = Field(default=1, ge=1)


class Shelf:
    @configured_by(ShelfConfig)
    def __init__(self, config: ShelfConfig) -> None:
        self.config = config


class WideConfig(ShelfConfig):
    width: int = 1


class Wide(Shelf):
    @configured_by(WideConfig)
    def __init__(self, config: WideConfig) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__init__(config)
        self.width = config.width


class TestConstructor:
    def test_it_takes_the_model_itself(self):
        config = ShelfConfig(path="p")
        assert Shelf(config).config is config

    def test_it_takes_the_fields_by_name_and_by_position(self):
        client = Client()
        for shelf in (
            Shelf("p", client, mode="safe"),
            Shelf("p", client=client, mode="safe"),
            Shelf(path="p", mode="safe", client=client),
        ):
            assert shelf.config == ShelfConfig(client=client, path="p", mode="safe")
            assert shelf.config.client is client

    def test_a_subclass_adds_options(self):
        wide = Wide(path="p", width=3)
        assert (wide.config.path, wide.width) == ("p", 3)
        assert Wide(WideConfig(path="q")).config.path == "q"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"path": ""}, r"^Shelf\.path: .* at least 1 character"),
            ({}, r"^Shelf\.path: is missing$"),
            ({"path": "p", "mdoe": "fast"}, r"^Shelf\.mdoe: .* did you mean 'mode'\?$"),
            ({"path": "p", "client": 3}, r"^Shelf\.client: .* instance of Client"),
        ],
    )
    def test_a_wrong_option_is_named(self, options: dict[str, Any], message: str):
        with pytest.raises(ConfigError, match=message):
            Shelf(**options)

    def test_too_many_arguments_and_two_values_are_type_errors(self):
        with pytest.raises(TypeError, match="options, of which 2 may be positional"):
            Shelf("p", None, "fast")  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="Shelf got two values for path"):
            Shelf("p", path="q")  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="one ShelfConfig alone"):
            Shelf(ShelfConfig(path="p"), None, "p")  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="one ShelfConfig alone"):
            Shelf(ShelfConfig(path="p"), n_runners=2)  # pyright: ignore[reportArgumentType]

    def test_the_signature_is_the_models(self):
        parameters = inspect.signature(Shelf).parameters
        assert list(parameters) == ["path", "client", "mode", "n_runners"]
        assert parameters["client"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert parameters["mode"].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters["mode"].default == "fast"

    def test_command_lines_are_made_from_it(self):
        shelf = lightning_cli(Shelf, args=["--shelf.path", "p", "--shelf.n-runners", "2"])
        assert shelf.config == ShelfConfig(path="p", n_runners=2)


class TestRegistry:
    def test_the_checked_model_is_handed_over(self):
        table = {"type": Shelf, "path": "p"}
        made = build_component("x", table, inject={"n_runners": 4, "other": 1}, expected=Shelf)
        assert made.config == ShelfConfig(path="p", n_runners=4)

    def test_options_are_checked_with_the_path_in_the_file(self):
        with pytest.raises(ConfigError, match=r"^store\.mode: .*, not 'slow'$"):
            build_component("x", {"type": Shelf, "path": "p", "mode": "slow"}, path="store")

    def test_a_subclass_with_a_constructor_of_its_own_is_called_as_it_is_written(self):
        class Fixed(Shelf):
            def __init__(self, path: str) -> None:
                super().__init__(path=path.upper())

        assert build_component("x", {"type": Fixed, "path": "p"}, expected=Shelf).config.path == "P"

    def test_a_plugin_is_given_its_model(self, here: Any, spec_source: Any):
        module = Path(__file__).stem
        sys.modules.setdefault(module, sys.modules[__name__])
        hooks = spec_source(
            "store", name="shelf", factory=f"{module}:Shelf", config=f"{module}:ShelfConfig"
        )
        here.install(
            "agl-store-shelf",
            entry_points={"store.shelf": "configured_hooks"},
            modules={"configured_hooks.py": hooks},
        )
        made = build_component("store", {"type": "shelf", "path": "p"}, expected=Shelf)
        assert made.config == ShelfConfig(path="p")


def test_a_model_is_not_changed_and_describes_its_fields():
    config = ShelfConfig(path="p")
    with pytest.raises(ValueError, match="frozen"):
        config.path = "q"  # pyright: ignore[reportAttributeAccessIssue]
    assert option_descriptions(ShelfConfig)["path"] == "The file of the shelf."
    assert config.model_dump() == {"path": "p", "mode": "fast", "n_runners": 1}


def test_pydantic_is_not_imported_for_the_registry():
    code = "import sys, agl_core.plugins; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_TYPED = """
from agl_exec_shm import SharedMemoryConfig, SharedMemoryExecutionStrategy as Strategy

Strategy(4, main_thread="algorithm", join_timeout=1)
Strategy(SharedMemoryConfig(n_runners=4))
Strategy(n_runners="four")
Strategy(n_runner=4)
Strategy(4, None, 1.0)
"""


def test_type_checkers_know_the_options(tmp_path: Path):
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is a tool of developers, not a dependency of the tests")
    file = tmp_path / "typed.py"
    file.write_text(_TYPED)
    words = [pyright, "--pythonpath", sys.executable, file]
    output = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    lines = {int(line.split(":")[1]) for line in output.splitlines() if " - error: " in line}
    assert lines == {6, 7, 8}, output
