from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agl_core
from tests.tables import check_each

STUB = Path(agl_core.__file__).with_suffix(".pyi")
HOMES = {
    alias.name: f"agl_core.{node.module}"
    for node in ast.parse(STUB.read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def test_every_name_resolves_to_what_its_module_has():
    listed = dir(agl_core)

    def check(name: str, home: str) -> None:
        assert getattr(agl_core, name) is getattr(import_module(home), name)
        assert name in listed
        assert name in vars(agl_core)["__all__"]

    check_each(check, HOMES.items())


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert agl_core.__version__ == version("agl-core")


def test_an_unknown_public_name():
    with pytest.raises(AttributeError, match="module 'agl_core' has no attribute 'Trianer'"):
        _ = agl_core.Trianer  # pyright: ignore


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


def test_the_default_adapter_is_imported_when_it_is_read():
    code = "import agl_core as agl\ntrainer = agl.Trainer(strategy='shm')"
    assert "agl_adapters" not in loaded_by(code)
    assert "agl_adapters" in loaded_by(f"{code}\ntrainer.adapter")


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["version"]])
def test_the_light_commands_import_no_component(words):
    loaded = loaded_by(f"from agl_cli_kit import main\nassert main({words!r}) == 0")
    assert loaded & {*SERVING, *COMPONENTS, *BY_PLUGINS_ONLY} == set()
    assert "agl_core.trainer" not in loaded
    assert "agl_core.store" not in loaded


def test_no_package_of_the_core_imports_libraries_of_plugins():
    loaded = loaded_by(
        "import agl_core\nfor name in agl_core.__all__:\n    getattr(agl_core, name)"
    )
    assert loaded & BY_PLUGINS_ONLY == set()
