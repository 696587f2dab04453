"""What pyright is told about packages and examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devtools import suites, type_checker


def test_paths_and_unknown_libraries_follow_from_the_packages(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = {
        "light": "import agl_base\n",
        "heavy": "from agl_other.parts import part\n",
        "apart": "",
    }
    for name, text in examples.items():
        (tree / "examples" / name).mkdir(parents=True)
        (tree / "examples" / name / "main.py").write_text(text)
    monkeypatch.setattr(type_checker, "ROOT", tree)
    monkeypatch.setattr(type_checker, "FILE", tree / "pyrightconfig.json")
    monkeypatch.setattr(suites, "examples_with_environments", lambda: ["apart"])
    type_checker.write()
    found = json.loads((tree / "pyrightconfig.json").read_text())
    assert found["extends"] == "pyproject.toml"
    assert {path for path in found["extraPaths"] if path.startswith("plugins/")} == {
        *("plugins/agl_base/src", "plugins/agl_other/src", "plugins/agl_user/src")
    }
    unknown = {entry["root"] for entry in found["executionEnvironments"]}
    assert {root for root in unknown if "agl_" in root or "examples" in root} == {
        *("plugins/agl_other", "tests/plugins/agl_other"),
        *("examples/heavy", "tests/examples/heavy", "examples/apart", "tests/examples/apart"),
    }
    assert all(e["reportMissingImports"] == "none" for e in found["executionEnvironments"])
