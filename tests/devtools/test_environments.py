"""When an environment is made anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from devtools import distributions, environments, packages, suites

VERSION = "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("config", "anew"),
    [
        (f"version_info = {VERSION}.1", False),
        (f"version = {VERSION}.9", False),
        ("version_info = 3.10.2", True),
        (f"version_info = {VERSION}0.1", True),
    ],
)
def test_an_environment_of_another_python_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, anew: bool
):
    made: list[Path] = []
    monkeypatch.setattr(environments, "say", lambda _: None)
    monkeypatch.setattr(environments, "stale", lambda *_: "stamp")
    monkeypatch.setattr(environments, "create", made.append)
    monkeypatch.setattr(environments, "install", lambda *_, **__: None)
    environments.python_of(tmp_path).parent.mkdir()
    environments.python_of(tmp_path).touch()
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\n{config}\n")
    environments.environment(tmp_path, ["x"])
    assert made == ([tmp_path] if anew else [])


def test_an_example_s_environment_depends_on_all_files_that_name_its_requirements(
    monkeypatch: pytest.MonkeyPatch,
):
    made_from: list[Path] = []
    monkeypatch.setattr(suites, "environment", lambda _, __, files: made_from.extend(files))
    monkeypatch.setattr(suites, "run", lambda *_, env: None)
    suites.run_example("sql_agent")
    found = {path.resolve().relative_to(packages.ROOT).as_posix() for path in made_from}
    assert found >= {
        "tests/envs/examples/sql_agent.txt",
        "examples/sql_agent/requirements.txt",
        "plugins/agl_scripted/pyproject.toml",
    }


def test_the_wheels_of_this_tree_are_taken_for_every_name_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An index may have a package of the same name, with a higher version."""

    def build_one(package: packages.Package) -> None:
        name = package.name.replace("-", "_")
        (distributions.DIST / f"{name}-0.1.0-py3-none-any.whl").touch()

    monkeypatch.setattr(distributions, "DIST", tmp_path / "dist")
    monkeypatch.setattr(distributions, "ROOT", tmp_path)
    monkeypatch.setattr(distributions, "tools", lambda: None)
    monkeypatch.setattr(distributions, "_build_one", build_one)
    monkeypatch.setattr(distributions.dashboard, "build", lambda: None)
    distributions.DIST.mkdir()
    monkeypatch.setattr(distributions.shutil, "rmtree", lambda *_, **__: None)
    build = distributions.build.__wrapped__
    monkeypatch.setattr(distributions, "build", build)
    option, constraints, *_ = distributions.from_here([])
    assert option == "--constraint"
    lines = Path(constraints).read_text().splitlines()
    assert len(lines) == len(packages.everything())
    wheel = (tmp_path / "dist/agl_store_memory-0.1.0-py3-none-any.whl").as_uri()
    assert f"agl-store-memory @ {wheel}" in lines


def package(name: str, *, heavy: bool, plugin: str | None = None) -> packages.Package:
    entry_points = {"agl": {plugin: "module:name"}} if plugin else {}
    project = {"name": name, "entry-points": entry_points}
    return packages.Package(Path(name), {"project": project, "tool": {"agl-dev": {"heavy": heavy}}})


PROGRAM = """#!/bin/sh
# An environment where agl-torch's configuration needs torch, agl-typo's imports what is nowhere,
# and agl-lost's needs a package of ours that is not installed.
case "$*" in
    *torch*) echo "No module named 'torch'"; exit 1;;
    *typo*) echo "name 'x' is not defined"; exit 1;;
    *lost*) echo "No module named 'agl_gone'"; exit 1;;
    *doctor*broken*) echo "it does not build"; exit 1;;
esac
echo "$*" >> ran
"""


@pytest.mark.skipif(os.name == "nt", reason="the programs are shell scripts")
def test_every_plugin_is_tried_where_all_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for program in (environments.python_of(tmp_path), environments.program_of(tmp_path, "agl")):
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAM)
        program.chmod(0o755)
    some = [
        package("agl-kit", heavy=False),
        package("agl-light", heavy=False, plugin="store.light"),
        package("agl-torch", heavy=True, plugin="algorithm.torch"),
        package("agl-typo", heavy=True, plugin="algorithm.typo"),
        package("agl-lost", heavy=True, plugin="algorithm.lost"),
        package("agl-broken", heavy=False, plugin="store.broken"),
    ]
    monkeypatch.setattr(distributions, "TOGETHER", tmp_path)
    monkeypatch.setattr(distributions, "all_plugins", lambda: some)
    monkeypatch.setattr(distributions, "install_together", lambda: pytest.fail("it is there"))
    with pytest.raises(SystemExit) as end:
        distributions.try_all()
    assert str(end.value) == "together, these do not work: agl_typo, agl_lost, agl_broken"
    said = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": ok")]
    assert said == ["agl_kit together: ok", "agl_light together: ok", "agl_torch together: ok"]
    ran = (tmp_path / "ran").read_text()
    assert "import agl_kit" in ran
    assert "plugins doctor --strict --dist agl-light" in ran
    assert "plugins show store.light" in ran
