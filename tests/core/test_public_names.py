from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import agl_core
from agl_core._exports import HOMES, PLUGIN_HOMES

STUB = Path(agl_core.__file__).with_suffix(".pyi")


@pytest.mark.parametrize("name", sorted(HOMES))
def test_every_name_resolves_to_what_its_module_has(name):
    module = __import__(HOMES[name], fromlist=[name])
    assert getattr(agl_core, name) is getattr(module, name)
    assert name in dir(agl_core)
    assert name in agl_core.__all__


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


@pytest.mark.parametrize("name", sorted(PLUGIN_HOMES))
def test_a_name_of_a_plugin_says_what_to_install(name, tmp_path):
    module, distribution = PLUGIN_HOMES[name]
    code = (
        f"import sys; sys.modules[{module!r}] = None  # as if it were not installed\n"
        f"try:\n    from agl_core import {name}\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = run("-c", code)
    assert done.stdout.strip().endswith(f"pip install '{distribution}'"), done.stderr
    (tmp_path / f"{module}.py").write_text(f"{name} = 'found'\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += f"import agl_core; print(agl_core.{name})"
    assert run("-c", code).stdout == "found\n"


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
