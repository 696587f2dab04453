"""Tests of the catalogue of this repository's packages."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import agl_core
from agl_catalogue.hooks import NAMES, PACKAGES
from agl_core.plugins import known_names, missing_package, package_of
from devtools import package_lists
from tests.tables import check_each

CORE = Path(agl_core.__file__).parent
PLUGINS = CORE.parent / "plugins"

pytestmark = pytest.mark.skipif(not PLUGINS.is_dir(), reason="needs the repository")


def projects() -> list[dict[str, Any]]:
    files = sorted(PLUGINS.glob("*/pyproject.toml"))
    return [tomllib.loads(file.read_text())["project"] for file in files]


def test_the_table_is_what_the_packages_declare():
    points = {project["name"]: project.get("entry-points", {}) for project in projects()}
    declared = {name: set(groups.get("agl", ())) for name, groups in points.items()}
    new = {package.name for package in package_lists.unlisted()}
    listed = {name: keys for name, keys in declared.items() if name not in new}
    listed["agl-core"] = set()
    assert {name: set(keys.split()) for name, keys in PACKAGES.items()} == listed


def test_its_names_are_in_packages_of_this_repository():
    packages = {project["name"] for project in projects()}
    for module, distribution in NAMES.values():
        assert distribution in packages
        assert (PLUGINS / module / "src" / module / "__init__.py").is_file()


def test_what_provides_a_plugin():
    assert package_of("store", "sqlite") == "agl-store-sqlite"
    assert package_of("dialect", "litellm") == "agl-proxy-litellm"
    assert package_of("store", "redis") == ""
    assert known_names("proxy") == ("direct", "litellm")


def test_a_name_of_a_missing_package_says_what_to_install():
    done = run(
        "-c",
        "import json, sys, agl_core\n"
        "said = {}\n"
        f"for name, (module, _) in {dict(NAMES)!r}.items():\n"
        "    sys.modules[module] = None  # as if it were not installed\n"
        "    assert not hasattr(agl_core, name)\n"
        "    try:\n"
        "        exec(f'from agl_core import {name}')\n"
        "    except ImportError as error:\n"
        "        said[name] = str(error)\n"
        "print(json.dumps(said))\n",
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    def check(name: str, home: tuple[str, str]) -> None:
        assert said[name] == str(missing_package(name, home[1]))
        assert home[1] in said[name].replace("_", "-")

    check_each(check, NAMES.items())


def test_a_name_of_a_package_is_that_of_its_module(tmp_path):
    names: dict[str, list[str]] = {}
    for name, (module, _) in NAMES.items():
        names.setdefault(module, []).append(name)
    for module, its in names.items():
        (tmp_path / f"{module}.py").write_text("".join(f"{n} = 'found {n}'\n" for n in its))
    done = run(
        "-c",
        f"import json, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import agl_core\n"
        f"print(json.dumps({{n: getattr(agl_core, n) for n in {sorted(NAMES)!r}}}))\n",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: f"found {name}" for name in NAMES}


def test_a_missing_plugin_is_a_missing_attribute_and_an_import_error_with_its_command():
    code = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name == "agl_tracer_agentops":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
import agl_core

assert not hasattr(agl_core, "AgentOpsTracer")
assert getattr(agl_core, "AgentOpsTracer", None) is None
try:
    agl_core.AgentOpsTracer
except AttributeError as error:
    print(error)
try:
    from agl_core import AgentOpsTracer
except ImportError as error:
    print(error)
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2
    assert set(said) == {str(missing_package("AgentOpsTracer", "agl-tracer-agentops"))}


def test_a_package_that_lacks_something_is_not_a_missing_package(tmp_path):
    (tmp_path / "agl_algo_apo.py").write_text("import agl_no_such_module\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport agl_core; agl_core.APO"
    assert "No module named 'agl_no_such_module'" in run("-c", code).stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
