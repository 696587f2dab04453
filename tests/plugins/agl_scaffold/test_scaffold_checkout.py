"""`agl plugins new` in the folder `plugins` of this repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.errors import ConfigError
from agl_core.plugins import KINDS
from agl_scaffold import PluginName, create_plugin
from agl_scaffold.checkout import checkout_of, with_sorted_imports

ROOT = Path(__file__).resolve().parents[3]
MADE = PluginName("app", "made-here")


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """The folder of the packages in a repository that has the files of this one's root."""
    for name in ("pyproject.toml", "dev.py", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        (tmp_path / "plugins" / path.parent.name).mkdir(parents=True)
        shutil.copyfile(path, tmp_path / "plugins" / path.parent.name / path.name)
    return tmp_path / "plugins"


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_package_is_one_of_the_repository(plugins: Path, monkeypatch, capsys):
    monkeypatch.chdir(plugins)
    assert main(["plugins", "new", "app", "made-here"]) == 0
    root = plugins.parent
    said = capsys.readouterr().out
    assert said.startswith(f"{plugins / 'agl_made_here'} is ready. Next:\n")
    assert "python3 dev.py test tests/plugins/agl_made_here" in said
    assert files_of(root / "tests/plugins/agl_made_here") == {"test_app.py"}
    package = plugins / "agl_made_here"
    sources = {f"src/agl_made_here/{name}" for name in ("__init__.py", "app.py", "hooks.py")}
    assert files_of(package) == {
        *("LICENSE", "README.md", "pyproject.toml", "src/agl_made_here/py.typed"),
        *sources,
    }
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    pyproject = tomllib.loads((package / "pyproject.toml").read_text())
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pyproject["project"]["version"] == core["version"]
    assert set(pyproject["tool"]) == {"hatch"}, "the root has the other settings"
    # What agl-store-http requires is in the line, too.
    line = "pip install . ./plugins/agl_adapters ./plugins/agl_cli_kit ./plugins/agl_made_here"
    line = f"{line} ./plugins/agl_serving ./plugins/agl_store_http ./plugins/agl_store_kit\n"
    assert line in (package / "README.md").read_text()


def test_the_bounds_are_those_of_the_repositorys_version(plugins: Path):
    file = plugins.parent / "pyproject.toml"
    for version, bounds in (
        ("0.3.0", ">=0.3,<0.4"),
        ("0.3.0rc1", ">=0.3.0rc1,<0.4"),
        ("0.3.0rc1+gabc", ">=0.3.0rc1,<0.4"),
        ("1.4.2+gabc", ">=1.4,<2"),
    ):
        file.write_text(f'[project]\nname = "agl-core"\nversion = "{version}"\n')
        text = (create_plugin(MADE, plugins) / "pyproject.toml").read_text()
        assert f'version = "{version}"' in text
        assert f'"agl-core{bounds}", "agl-store-http{bounds}"' in text
        shutil.rmtree(plugins / MADE.package)
        shutil.rmtree(plugins.parent / "tests/plugins" / MADE.package)


def test_every_kind_passes_the_repositorys_lint(plugins: Path):
    for kind in KINDS:
        create_plugin(PluginName(kind, f"made-{kind.replace('_', '-')}"), plugins)
    assert len(files_of(plugins.parent / "tests/plugins")) >= len(KINDS)
    for command in (("check",), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "plugins", "tests"],
            cwd=plugins.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("taken", ["plugins", "tests/plugins"])
def test_a_folder_that_exists_is_left_alone(plugins: Path, taken: str):
    there = plugins.parent / taken / MADE.package
    there.mkdir(parents=True)
    (there / "precious").write_text("x")
    with pytest.raises(ConfigError, match=f"{there} exists already"):
        create_plugin(MADE, plugins)
    assert set(plugins.parent.rglob(f"*{MADE.package}*")) == {there}


def test_a_failure_half_way_leaves_nothing(plugins: Path, monkeypatch: pytest.MonkeyPatch):
    before = files_of(plugins.parent)
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if "tests" in target.parts:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        create_plugin(MADE, plugins)
    assert files_of(plugins.parent) == before


def test_a_folder_of_that_name_elsewhere_is_any_folder(tmp_path: Path):
    assert checkout_of(ROOT / "plugins") is not None
    assert checkout_of(ROOT) is None
    for text in ("", '[project]\nname = "other"\n'):
        (tmp_path / "pyproject.toml").write_text(text)
        (tmp_path / "dev.py").touch()
        assert checkout_of(tmp_path / "plugins") is None
    assert create_plugin(MADE, tmp_path / "plugins").name == "agl-made-here"


def test_imports_are_sorted_by_section():
    top = (
        '"""A module."""\n\nfrom __future__ import annotations\n\n'
        "import sys\nfrom abc import ABC\n\n"
    )
    before = (
        "from agl_core import (\n    Trainer,\n)\nfrom pydantic import Field\nimport pytest\n\n"
        "from agl_a import b\n\nVALUE = 1\n\nimport late\n"
    )
    after = (
        "import pytest\nfrom pydantic import Field\n\n"
        "from agl_a import b\nfrom agl_core import (\n    Trainer,\n)\n\nVALUE = 1\n\nimport late\n"
    )
    assert with_sorted_imports(top + before) == top + after
    assert with_sorted_imports('"""Nothing."""\n') == '"""Nothing."""\n'
