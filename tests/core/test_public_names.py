from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agl_core
from agl_core._exports import HOMES, PLUGIN_HOMES
from tests.tables import check_each

STUB = Path(agl_core.__file__).with_suffix(".pyi")


def test_every_name_resolves_to_what_its_module_has():
    listed = dir(agl_core)

    def check(name: str, home: str) -> None:
        assert getattr(agl_core, name) is getattr(import_module(home), name)
        assert name in listed
        assert name in agl_core.__all__

    check_each(check, HOMES.items())


def test_the_stub_says_what_the_table_says():
    tree = ast.parse(STUB.read_text())
    imported = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert imported == HOMES
    declared = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}  # pyright: ignore
    assert declared == {*PLUGIN_HOMES, "__version__"}
    (exported,) = (n.value for n in tree.body if isinstance(n, ast.Assign))
    assert set(ast.literal_eval(exported)) == set(HOMES)


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert agl_core.__version__ == version("agl-core")


def test_an_unknown_public_name():
    with pytest.raises(AttributeError, match="module 'agl_core' has no attribute 'Trianer'"):
        _ = agl_core.Trianer  # pyright: ignore


def test_a_name_of_a_plugin_says_what_to_install():
    done = run(
        "-c",
        "import json, sys, agl_core\n"
        "said = {}\n"
        f"for name, (module, _) in {dict(PLUGIN_HOMES)!r}.items():\n"
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
        assert said[name].endswith(f"pip install '{home[1]}'")

    check_each(check, PLUGIN_HOMES.items())


def test_a_name_of_a_plugin_is_that_of_its_module(tmp_path):
    names: dict[str, list[str]] = {}
    for name, (module, _) in PLUGIN_HOMES.items():
        names.setdefault(module, []).append(name)
    for module, its in names.items():
        (tmp_path / f"{module}.py").write_text("".join(f"{n} = 'found {n}'\n" for n in its))
    done = run(
        "-c",
        f"import json, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import agl_core\n"
        f"print(json.dumps({{n: getattr(agl_core, n) for n in {sorted(PLUGIN_HOMES)!r}}}))\n",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: f"found {name}" for name in PLUGIN_HOMES}


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
    assert all("pip install 'agl-tracer-agentops'" in line for line in said)


def test_a_plugin_that_lacks_something_is_not_a_missing_plugin(tmp_path):
    (tmp_path / "agl_algo_apo.py").write_text("import agl_no_such_module\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport agl_core; agl_core.APO"
    assert "No module named 'agl_no_such_module'" in run("-c", code).stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


SERVING = {"aiohttp", "fastapi", "uvicorn", "rich", "jinja2", "yaml"}
COMPONENTS = {"pydantic", "opentelemetry", "anyio", "psutil", "google.protobuf"}
BY_PLUGINS_ONLY = {
    *("torch", "vllm", "verl", "ray", "litellm", "openai", "agentops", "pymongo", "numpy")
}


def loaded_by(code: str) -> set[str]:
    done = run("-c", f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_nothing_heavy():
    loaded = loaded_by("import agl_core")
    light = {"asyncio", "click", "pluggy", "stevedore"}
    assert loaded & {*SERVING, *COMPONENTS, *BY_PLUGINS_ONLY, *light} == set()
    assert len(loaded) < 400


def test_the_first_use_imports_no_server_and_no_client():
    loaded = loaded_by(
        "import agl_core as agl\nagl.Trainer(strategy='shm'), agl.rollout, agl.emit_reward"
    )
    assert loaded & {*SERVING, *BY_PLUGINS_ONLY} == set()


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["version"]])
def test_the_light_commands_import_no_component(words):
    loaded = loaded_by(f"from agl_core.cli import main\nassert main({words!r}) == 0")
    assert loaded & {*SERVING, *COMPONENTS, *BY_PLUGINS_ONLY} == set()
    assert "agl_core.trainer" not in loaded
    assert "agl_core.store" not in loaded


def test_no_package_of_the_core_imports_libraries_of_plugins():
    loaded = loaded_by(
        "import agl_core\nfor name in agl_core.__all__:\n    getattr(agl_core, name)"
    )
    assert loaded & BY_PLUGINS_ONLY == set()
