"""`agl plugins new`: the files that it writes, and the names that it refuses."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.plugins import KINDS
from agl_scaffold import PluginName, create, create_plugin


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_whole(kind, tmp_path):
    name = PluginName(kind, "two-words")
    files = files_of(create_plugin(name, tmp_path))
    package = f"src/{name.package}"
    assert {
        "pyproject.toml",
        "README.md",
        ".gitignore",
        ".github/workflows/tests.yml",
        f"{package}/__init__.py",
        f"{package}/hooks.py",
        f"{package}/py.typed",
    } <= set(files)
    assert any(path.startswith("tests/test_") for path in files)
    for path, text in files.items():
        assert "PACKAGE" not in path
        assert "$" not in text.replace("${{ matrix.python }}", ""), path
        if path.endswith(".py"):
            compile(text, path, "exec")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == name.distribution
    declared = project["entry-points"]["agl"]
    assert set(declared.values()) == {f"{name.package}.hooks"}
    assert f"{kind}.two-words" in declared
    assert kind == "kind" or len(declared) == 1
    assert project["dependencies"][0] == "agl-core>=0.1,<0.2"


@pytest.mark.parametrize("kind", KINDS)
def test_its_hook_returns_a_valid_spec(kind, tmp_path, agl_registry, monkeypatch):
    name = PluginName(kind, "spec-of-" + kind.replace("_", "-"))
    folder = create_plugin(name, tmp_path)
    monkeypatch.syspath_prepend(str(folder / "src"))
    agl_registry.add(f"{kind}.{name.name}", f"{name.package}.hooks")
    from agl_core.plugins import get_registry

    spec = get_registry().load(get_registry().find(kind, name.name))
    assert spec.name == name.name
    assert spec.summary


def test_every_kind_passes_the_lint_of_its_package(tmp_path):
    for kind in KINDS:
        create_plugin(PluginName(kind, f"made-{kind.replace('_', '-')}"), tmp_path)
    for command in (("check",), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_names():
    name = PluginName("llm_server", "my-gpu2")
    assert name.distribution == "agl-server-my-gpu2"
    assert name.package == "agl_server_my_gpu2"
    assert (name.camel, name.snake) == ("MyGpu2", "my_gpu2")
    assert PluginName("app", "board").distribution == "agl-board"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["shop", "x"], "there is no kind 'shop' (kinds: store, tracer,"),
        (["stores", "x"], "there is no kind 'stores'; did you mean 'store'? (kinds:"),
        (["store", "My_Store"], "'My_Store' is not a plugin name: use lower-case letters,"),
        (["store", "2nd"], "'2nd' is not a plugin name"),
        (["store", "a--b"], "'a--b' is not a plugin name"),
        (["store", "../evil"], "'../evil' is not a plugin name"),
        (["store", "x" * 31], "at most 30 characters"),
        (["store", ""], "'' is not a plugin name"),
        (["command", "import"], "'import' is a word of Python"),
        (["command", "version"], "agl-cli-kit has it already"),
        (["store", "sqlite"], "agl-store-sqlite has it already"),
        (["store", "memory"], "agl-store-memory has it already"),
        (["kind", "store"], "agl-core has the kind 'store' already: take another name"),
        (["kind", "llm-server"], "agl-core has the kind 'llm-server' already"),
        (["resource", "llm"], "agl-core has the resource 'llm' already"),
        (["resource", "prompt-template"], "agl-core has the resource 'prompt-template' already"),
        (["template_engine", "poml"], "agl-core has the template_engine 'poml' already"),
        (["template_engine", "f-string"], "agl-core has the template_engine 'f-string' already"),
        (["command", "core"], "there is a package agl-core already: take another name"),
        (["hook", "store-sqlite"], "there is a package agl-store-sqlite already"),
        (["provider", "server-vllm"], "there is a package agl-server-vllm already"),
    ],
)
def test_invalid_names_are_refused_in_one_line(arguments, line, tmp_path, capsys, agl_registry):
    agl_registry.add("catalogue.agl", "agl_catalogue.hooks")
    assert main(["plugins", "new", *arguments, "--path", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("agl: error: ")
    assert line in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_an_installed_package_is_refused(tmp_path, capsys, agl_registry):
    agl_registry.add("store.mine", "acme_hooks", dist="acme-store")
    agl_registry.add("store.yours", "acme_hooks", dist="agl-store-yours")
    assert main(["plugins", "new", "store", "mine", "--path", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == "agl: error: acme-store provides store.mine: take another name\n"
    # Who writes a package again may have the first one installed.
    assert main(["plugins", "new", "store", "yours", "--path", str(tmp_path)]) == 0


def test_an_existing_folder_is_left_alone(tmp_path, capsys):
    there = tmp_path / "agl-store-mine"
    there.mkdir()
    (there / "precious").write_text("x")
    assert main(["plugins", "new", "store", "mine", "--path", str(tmp_path)]) == 2
    assert "exists already: remove it, or choose another name or --path" in capsys.readouterr().err
    assert files_of(tmp_path) == {"agl-store-mine/precious": "x"}


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["plugins", "new", "store", "mine", "--path", str(tmp_path / "file/x")]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    def fail(*folders: str):
        yield "README.md", "text"
        raise RuntimeError("half way")

    monkeypatch.setattr(create, "_templates", fail)
    with pytest.raises(RuntimeError, match="half way"):
        create_plugin(PluginName("store", "mine"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_prints_the_next_commands(tmp_path, capsys):
    assert main(["plugins", "new", "adapter", "pairs", "--path", str(tmp_path / "a new")]) == 0
    folder = tmp_path / "a new/agl-adapter-pairs"
    assert folder.is_dir()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder} is ready. Next:"
    assert [line.strip() for line in lines[1:]] == [
        f"cd '{folder}'",
        "pip install -e '.[test]'",
        "pytest",
    ]
