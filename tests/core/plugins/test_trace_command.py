"""`agl plugins trace`: the calls of hooks in a command, a program, and the processes of a run."""

from __future__ import annotations

import json
import sys

import pytest

HOOKS = """
from agl_core.plugins import CommandSpec, HookSpec, hookimpl

@hookimpl
def agl_command():
    return CommandSpec("acme", target="acme_command:acme", summary="Does things", api=1)

@hookimpl
def agl_hook():
    return HookSpec("acme", module="acme_listener", api=1)
"""
COMMAND = """
import subprocess, sys
import click
from agl_core.plugins import notify

@click.command()
@click.option("--code", default=0)
@click.option("--child", is_flag=True)
def acme(code, child):
    print("printed by acme", flush=True)
    notify("algorithm_step", algorithm="a", step=3 if code else 0, metrics={})
    if child:
        subprocess.run([sys.executable, "-m", "agl_cli_kit", "acme"], check=True)
    return code
"""
LISTENER = """
import asyncio
from agl_core.plugins import hookimpl

@hookimpl
async def algorithm_step(step):
    await asyncio.sleep(0.02)
    if step == 3:
        raise RuntimeError("three is too many")
"""


@pytest.fixture
def acme(site):
    site.install(
        "acme",
        entry_points={"command.acme": "acme_hooks", "hook.acme": "acme_hooks"},
        modules={
            "acme_hooks.py": HOOKS,
            "acme_command.py": COMMAND,
            "acme_listener.py": LISTENER,
        },
    )
    return site


def test_the_calls_of_a_command_are_a_table_after_its_output(acme):
    done = acme.agl("plugins", "trace", "acme")
    assert done.returncode == 0, done.stderr
    first, columns, *rows = done.stdout.splitlines()
    assert first == "printed by acme"
    assert columns.split() == ["at", "s", "took", "ms", "process", "hook", "plugins", "error"]
    assert [row.split()[3:] for row in rows] == [
        ["agl_command", "acme_hooks"],
        ["agl_hook", "acme_hooks"],
        ["algorithm_step", "acme"],
    ]
    assert float(rows[-1].split()[1]) >= 20


def test_options_errors_and_the_exit_code_are_those_of_the_command(acme):
    done = acme.agl("plugins", "trace", "--json", "acme", "--code", "7")
    assert done.returncode == 7
    assert "printed by acme" in done.stderr
    calls = json.loads(done.stdout)
    errors = {call["hook"]: call["error"] for call in calls}
    assert errors == {
        "agl_command": None,
        "agl_hook": None,
        "algorithm_step": "RuntimeError: three is too many",
    }


def test_the_calls_of_child_processes_are_there_in_order(acme):
    calls = json.loads(acme.agl("plugins", "trace", "--json", "acme", "--child").stdout)
    steps = [call["process"] for call in calls if call["hook"] == "algorithm_step"]
    assert len(set(steps)) == 2
    assert [call["time"] for call in calls] == sorted(call["time"] for call in calls)


def test_a_program_is_traced_like_a_command(acme):
    source = (
        "from agl_core.plugins import get_registry; print(len(get_registry().extensions('hook')))"
    )
    done = acme.agl("plugins", "trace", "--json", sys.executable, "-c", source)
    assert done.stderr.strip() == "1"
    assert [call["hook"] for call in json.loads(done.stdout)] == ["agl_hook"]


def test_what_is_neither_a_command_nor_a_program_is_refused(acme):
    done = acme.agl("plugins", "trace", "no-such-thing")
    assert done.returncode == 2
    assert "'no-such-thing' is neither a command of agl nor a program" in done.stderr


def test_without_calls_it_says_so(acme):
    done = acme.agl("plugins", "trace", sys.executable, "-c", "")
    assert done.stdout.strip() == "no hook of a plugin was called"
