"""Missing libraries are reported in one line; listing the plugin imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from packaging.requirements import Requirement

import agl_core as agl
from agl_algo_verl import VERL
from agl_algo_verl.requirements import NEEDED, check_requirements
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.plugins import build_component


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, version: str | None) -> None:
    real = importlib.metadata.version

    def answer(asked: str) -> str:
        if asked != name:
            return real(asked)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(importlib.metadata, "version", answer)


class TestRequirements:
    def test_what_is_installed_here_will_do(self):
        check_requirements()

    @pytest.mark.parametrize("name", sorted(NEEDED))
    def test_the_error_for_a_missing_package_names_the_command(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ):
        pretend(monkeypatch, name, None)
        with pytest.raises(MissingDependencyError) as error:
            check_requirements()
        assert str(error.value) == (
            f"VERL needs a package that is not installed: pip install '{name}{NEEDED[name]}'"
        )

    @pytest.mark.parametrize(
        ("name", "version"), [("verl", "0.8.0"), ("torch", "2.5.1"), ("TransferQueue", "0.2.0")]
    )
    def test_the_error_for_a_wrong_version_names_the_command(
        self, monkeypatch: pytest.MonkeyPatch, name: str, version: str
    ):
        pretend(monkeypatch, name, version)
        with pytest.raises(MissingDependencyError) as error:
            check_requirements()
        assert str(error.value) == (
            f"VERL cannot use {name} {version}: pip install '{name}{NEEDED[name]}'"
        )

    def test_they_are_those_of_the_distribution(self):
        found = {}
        for text in importlib.metadata.requires("agl-algo-verl") or ():
            requirement = Requirement(text)
            if requirement.marker is None and not requirement.name.startswith("agl-"):
                found[requirement.name.lower()] = requirement.specifier
        assert found == {n.lower(): Requirement(n + v).specifier for n, v in NEEDED.items()}

    @pytest.mark.parametrize(
        ("need", "package", "message"),
        [
            ("fork", "agl_replay", r"forked.* not installed: .*agl.replay"),
            ("cpu", "agl_verl_cpu", r"device='cpu'.* not installed: .*agl.verl.cpu"),
        ],
    )
    def test_what_only_some_settings_need(
        self, monkeypatch: pytest.MonkeyPatch, need: str, package: str, message: str
    ):
        check_requirements(**{need: True})
        real = importlib.util.find_spec

        def find_spec(name: str) -> Any:
            return None if name == package else real(name)

        monkeypatch.setattr("agl_algo_verl.requirements.find_spec", find_spec)
        check_requirements()
        with pytest.raises(MissingDependencyError, match=message):
            check_requirements(**{need: True})

    async def test_a_run_asks_first(self, monkeypatch: pytest.MonkeyPatch):
        pretend(monkeypatch, "verl", None)
        algorithm: VERL[Any] = VERL({})
        with pytest.raises(MissingDependencyError, match=r"pip install 'verl>=0\.9\.1,<0\.10'"):
            await algorithm.run([1])

    async def test_a_run_needs_tasks(self):
        algorithm: VERL[Any] = VERL({})
        with pytest.raises(ValueError, match="needs tasks in train_dataset"):
            await algorithm.run([])


class TestByName:
    def test_it_is_built_by_name(self):
        built: Any = build_component("algorithm", {"type": "verl", "aggregation": "trajectory"})
        assert isinstance(built, VERL)
        assert built.options.aggregation == "trajectory"
        assert built.options.on_failed == "retry"

    def test_it_is_exported_by_agl_core(self):
        pytest.importorskip("agl_catalogue", reason="its catalogue has the name")
        assert agl.VERL is VERL  # pyright: ignore[reportAttributeAccessIssue]

    def test_an_unknown_option_is_named(self):
        with pytest.raises(ConfigError, match="agregation"):
            build_component("algorithm", {"type": "verl", "agregation": "trajectory"})

    def test_listing_and_building_import_no_torch(self):
        program = (
            "import sys\n"
            "from agl_cli_kit import main\n"
            "try:\n    main(['plugins', 'list'])\nexcept SystemExit as end:\n"
            "    assert not end.code, end.code\n"
            "from agl_core.plugins import build_component\n"
            "build_component('algorithm', {'type': 'verl', 'config': {'data': {}}})\n"
            "print(sorted({'torch', 'verl', 'ray', 'hydra', 'transformers'} & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert "verl" in done.stdout.split("[]")[0]
        assert done.stdout.rstrip().endswith("[]")
