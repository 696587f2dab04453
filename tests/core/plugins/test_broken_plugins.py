"""Tests of broken plugins of all sorts, which pip installs together into one directory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

NO_MODULE = "agl_no_such_module"
FINE = """
from pydantic import BaseModel, ConfigDict
from agl_store_memory import InMemoryLightningStore

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

class Store(InMemoryLightningStore):
    def __init__(self): super().__init__()
"""


@dataclass(frozen=True)
class Case:
    """The source of a broken plugin, and the expected reports about it."""

    listed: str  # status from metadata alone
    examined: str  # status after the doctor's check
    note: str  # part of the doctor's note
    hooks: str = ""
    implementation: str = ""
    value: str = ""
    requires: str = "agl-core>=0.1,<0.2"


CASES = {
    "fine": Case("ok", "ok", ""),
    "hookimport": Case("ok", "broken", f"No module named '{NO_MODULE}'", f"import {NO_MODULE}"),
    "syntax": Case("ok", "broken", "SyntaxError", "def ("),
    "exits": Case("ok", "broken", "SystemExit: 3", "raise SystemExit(3)"),
    "dies": Case("ok", "broken", "ended its process with code 7", "import os; os._exit(7)"),
    "hangs": Case("ok", "broken", "not finished after 8 s", "import time; time.sleep(600)"),
    "nohook": Case("ok", "broken", "no @hookimpl function agl_store", "pass"),
    "wrongtype": Case(
        "ok",
        "broken",
        "str and not ComponentSpec",
        "from agl_core.plugins import hookimpl\n@hookimpl\ndef agl_store(): return 'store'",
    ),
    "newerapi": Case(
        "ok",
        "incompatible",
        "plugin API 2, this core has 1",
        "from agl_core.plugins import ComponentSpec, hookimpl\n@hookimpl\ndef agl_store():\n"
        "    return ComponentSpec(kind='store', name='newerapi', factory='json:X', api=2)",
    ),
    "dependency": Case(
        "ok",
        "broken",
        f"No module named '{NO_MODULE}'",
        implementation=f"import {NO_MODULE}",
        requires=f"{NO_MODULE.replace('_', '-')}>=1",
    ),
    "atbuild": Case(
        "ok",
        "broken",
        f"No module named '{NO_MODULE}'",
        implementation=FINE.replace("super().__init__()", f"import {NO_MODULE}"),
    ),
    "crashes": Case(
        "ok",
        "broken",
        "ZeroDivisionError",
        implementation=FINE.replace("super().__init__()", "1 / 0"),
    ),
    "notastore": Case(
        "ok",
        "broken",
        "is not a LightningStore",
        implementation=FINE.replace("(InMemoryLightningStore)", "").replace(
            "super().__init__()", "pass"
        ),
    ),
    "lenient": Case(
        "ok", "broken", "lets unknown options pass", implementation=FINE.replace("forbid", "allow")
    ),
    "newcore": Case("incompatible", "incompatible", "agl-core>=99", requires="agl-core>=99"),
    "badvalue": Case("broken", "broken", "is not the name of a module", value="no module at all"),
}


def source_of(name: str) -> str:
    return (
        "from agl_core.plugins import ComponentSpec, hookimpl\n@hookimpl\ndef agl_store():\n"
        f"    return ComponentSpec(kind='store', name='{name}', factory='agl_{name}.store:Store', "
        f"config='agl_{name}.store:Config', api=1)\n"
    )


# One worker runs all these tests, because each further worker would run their slow fixture again.
pytestmark = pytest.mark.xdist_group("broken_plugins")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, make_site):
    site = make_site(tmp_path_factory.mktemp("broken") / "site")
    for name, case in CASES.items():
        site.build(
            f"agl-store-{name}",
            entry_points={f"store.{name}": case.value or f"agl_{name}.hooks"},
            modules={
                f"agl_{name}/__init__.py": "",
                f"agl_{name}/hooks.py": case.hooks or source_of(name),
                f"agl_{name}/store.py": case.implementation or FINE,
            },
            requires=[case.requires],
        )
    for owner in ("left", "right"):
        site.build(
            f"agl-{owner}",
            entry_points={"store.both": f"agl_{owner}.hooks", "command.both": f"agl_{owner}.hooks"},
            modules={f"agl_{owner}/__init__.py": "", f"agl_{owner}/hooks.py": source_of("both")},
        )
    for name, hooks in {"stumbles": f"import {NO_MODULE}", "leaves": "raise SystemExit(4)"}.items():
        site.build(
            f"agl-{name}",
            entry_points={f"command.{name}": f"agl_{name}", f"hook.{name}": f"agl_{name}"},
            modules={f"agl_{name}.py": hooks},
        )
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    command += ["--disable-pip-version-check", "--target", str(site.path)]
    subprocess.run([*command, *map(str, site.wheels.glob("*.whl"))], check=True, timeout=100)
    return site


def test_pip_installed_them(installed):
    infos = {path.name for path in Path(installed.path).glob("*.dist-info")}
    assert "agl_store_hangs-1.0.dist-info" in infos
    assert len(infos) == len(CASES) + 4


def test_the_help_is_there(installed):
    done = installed.agl("--help")
    assert done.returncode == 0, done.stderr
    assert "plugins" in done.stdout
    assert "Versions of the core" in done.stdout
    for name in ("both", "leaves", "stumbles"):
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith(name))
        assert "(not usable, see `agl plugins doctor`)" in line
    assert done.stderr == ""


def test_the_list_shows_what_metadata_can_tell(installed):
    done = installed.agl("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    for name, case in CASES.items():
        assert rows["store", name]["status"] == case.listed, name
    assert rows["store", "both"]["status"] == "conflict"
    assert rows["store", "memory"]["status"] == "ok"
    assert done.stderr == ""


def test_the_doctor_says_what_is_wrong_with_each(installed):
    done = installed.agl("plugins", "doctor", "--kind", "store", "--json", "--timeout", "8")
    assert done.returncode == 1, done.stderr
    found = {(row["key"], row["dist"]): row for row in json.loads(done.stdout)}
    for name, case in CASES.items():
        row = found[f"store.{name}", f"agl-store-{name}"]
        assert (row["status"], case.note in row["note"]) == (case.examined, True), row
    assert found["store.memory", "agl-store-memory"]["status"] == "ok"
    assert found["store.both", "agl-left"]["status"] == "broken"  # its implementation is missing
    assert 8 <= found["store.hangs", "agl-store-hangs"]["seconds"] < 30


def test_the_doctor_is_strict_with_the_option(installed):
    too_new = ("plugins", "doctor", "--dist", "agl-store-newcore")
    assert [installed.agl(*too_new, *more).returncode for more in ((), ("--strict",))] == [0, 1]
    of_one = ("plugins", "doctor", "--kind", "command", "--dist", "agl_stumbles")
    done = installed.agl(*of_one, "--strict")
    assert (done.returncode, "command.stumbles" in done.stdout) == (1, True)
    assert "hook.stumbles" not in done.stdout
    done = installed.agl("--no-plugins", *of_one)
    assert (done.returncode, "switched off" in done.stderr) == (2, True)


def test_asking_for_a_broken_one_is_one_line_and_exit_code_2(installed):
    for arguments, message in [
        (["plugins", "show", "store.syntax"], "SyntaxError"),
        (["plugins", "show", "store.both"], "pin one, e.g. 'agl-left:both'"),
        (["plugins", "show", "newcore"], "upgrade agl-store-newcore and agl-core"),
        (["stumbles"], f"No module named '{NO_MODULE}'"),
        (["leaves"], "SystemExit: 4"),
        (["both"], "pin one"),
    ]:
        done = installed.agl(*arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stdout == ""


def test_no_plugins_also_applies_to_child_processes(installed):
    code = (
        "from agl_cli_kit import main; main(['--no-plugins', 'version', '--json'])\n"
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'agl_cli_kit', 'version', '--json'], check=True)\n"
    )
    done = installed.python("-c", code)
    assert done.returncode == 0, done.stderr
    both = [json.loads(line)["plugins"] for line in done.stdout.splitlines()]
    assert len(both) == 2
    listed = installed.agl("--no-plugins", "plugins", "list", "--json")
    statuses = {row["status"] for row in json.loads(listed.stdout)}
    assert statuses == {"disabled"}


def test_a_run_goes_on_whatever_is_installed(installed):
    code = (
        "import asyncio\n"
        "from agl_core.plugins import build_component, notify\n"
        "notify('algorithm_step', algorithm='a', step=0, metrics={})\n"
        "store = build_component('store', 'memory')\n"
        "print(asyncio.run(store.statistics())['total_rollouts'])\n"
        "print(type(build_component('store', 'fine')).__module__)\n"
    )
    done = installed.python("-c", code)
    assert done.stdout.split() == ["0", "agl_fine.store"], done.stderr
    assert "hook.stumbles of agl-stumbles 1.0" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_runs_whatever_is_installed(installed):
    demo = Path(__file__).parents[3] / "examples" / "room_booking" / "main.py"
    quick = ("--seed", "5", "--rollouts", "130", "--held-out", "12")
    done = installed.python(str(demo), "--json", *quick)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["found_score"]["mean"] > result["seed_score"]["mean"]
