from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import click
import pytest

from agl_cli_kit import group, main
from agl_core import __version__, errors
from agl_core.plugins import PluginRecord, Registry, remedy, reset_registry


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"agl {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["plugins"], ["export"]])
def test_a_group_without_a_command_prints_its_help(capsys, arguments):
    newer = hasattr(click.exceptions, "NoArgsIsHelpError")  # click 8.2
    assert main(arguments) == (2 if newer else 0)
    said = "".join(capsys.readouterr())
    assert said.startswith("Usage: agl ")
    assert "\nCommands:\n" in said


def test_its_own_commands_work_whatever_is_switched_off(capsys, monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "*")
    reset_registry()
    try:
        assert main(["plugins", "list", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["status"] for row in rows} == {"disabled"}
        assert main(["version", "--json"]) == 0
        assert "agl-cli-kit" in json.loads(capsys.readouterr().out)["plugins"]
        assert main(["--help"]) == 0
        help_ = capsys.readouterr().out
        assert "List, describe and check plugins\n" in help_
        assert "Versions of the core" in help_
        assert main(["export"]) == 2
        assert "switched off by AGL_DISABLE_PLUGINS" in capsys.readouterr().err
    finally:
        reset_registry()


def test_the_error_names_the_option_that_switched_plugins_off(capsys, monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "")  # the option sets it for child processes
    try:
        assert main(["--no-plugins", "export", "x"]) == 2
        assert "switched off by --no-plugins" in capsys.readouterr().err
        assert os.environ["AGL_DISABLE_PLUGINS"] == "*"
    finally:
        reset_registry()


def test_no_plugin_replaces_its_own_commands(capsys):
    rival = PluginRecord("command", "version", "rival", "1", "ok", "", "no_module_of_this_name")
    reset_registry(Registry([rival]))
    try:
        assert main(["version"]) == 0
        assert capsys.readouterr().out.startswith(f"agl {__version__} ")
    finally:
        reset_registry()


def test_version_says_what_it_runs_on(capsys):
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"agl {__version__} (plugin API 1)\npython 3.")
    assert main(["version", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["agl_core"], said["plugin_api"]) == (__version__, 1)


def test_every_help_has_an_example(capsys):
    for words in (
        [],
        ["version"],
        ["plugins"],
        ["plugins", "list"],
        ["plugins", "show"],
        ["plugins", "doctor"],
        ["train"],
        ["eval"],
    ):
        assert main([*words, "--help"]) == 0
        assert f"Example: agl {' '.join(words)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plugin"], "no command 'plugin' exists; did you mean 'plugins'?"),
        (["plugins", "lst"], "No such command 'lst'"),
        (["plugins", "list", "--jsn"], "No such option '--jsn'"),
        (["plugins", "list", "--kind", "shop"], "there is no kind 'shop' (kinds: store,"),
        (["plugins", "show"], "Missing argument 'NAME'"),
        (["plugins", "show", "nothing"], "no plugin 'nothing' is installed"),
        (["plugins", "show", "memry"], "no plugin 'memry' is installed; did you mean 'memory'?"),
        (["plugins", "show", "verl"], "no algorithm 'verl' is installed: "),
        (["plugins", "doctor", "--timeout", "0"], "0.0 is not in the range"),
        (["plugins", "doctor", "--dist", "nothing"], "nothing provides no such plugin; see `agl"),
        (
            ["plugins", "doctor", "--dist", "agl-store-sqlit"],
            "agl-store-sqlit provides no such plugin; did you mean 'agl-store-sqlite'?",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("agl: error: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.fixture
def failing(monkeypatch):
    """Make ``agl fail`` raise an error."""

    def install(error: BaseException) -> None:
        @click.command()
        @click.argument("words", nargs=-1)
        def fail(words):
            raise error

        monkeypatch.setattr(group.root, "get_command", lambda ctx, name: fail)

    return install


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.ConfigError("is wrong", path="store.path"), 2, "store.path: is wrong"),
        (errors.PluginBrokenError("two\nlines"), 2, "two lines"),
        (errors.MissingDependencyError("it", pip="x"), 2, "pip install 'x'"),
        (errors.StoreUnavailableError("no store at http://x"), 1, "no store at http://x"),
        (KeyError("key"), 1, "KeyError: 'key' (--traceback shows where)"),
        (click.ClickException("a plugin's own"), 1, "a plugin's own"),
    ],
)
def test_errors_become_exit_codes(capsys, failing, error, code, message):
    failing(error)
    assert main(["fail"]) == code
    assert capsys.readouterr().err == f"agl: error: {message}\n" if code == 1 else True
    assert main(["fail", "--traceback"]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback (most recent call last)" in said


def test_traceback_after_two_dashes_is_the_commands(capsys, failing):
    failing(KeyError("key"))
    assert main(["fail", "--", "--traceback"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130(capsys, failing, error):
    failing(error)
    assert main(["fail"]) == 130
    assert capsys.readouterr().err.strip() == "agl: interrupted"


def test_what_a_command_returns_is_its_exit_code_if_it_is_one(monkeypatch):
    for returned, code in [(3, 3), (None, 0), (True, 0), ("text", 0)]:
        command = click.Command("x", callback=lambda returned=returned: returned)
        monkeypatch.setattr(group.root, "get_command", lambda ctx, name, c=command: c)
        assert main(["x"]) == code


def test_a_closed_pipe_prints_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", "plugins", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_list_in_plain_text_and_json_agree(capsys):
    assert main(["plugins", "list", "--kind", "store", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in rows} == {"store"}
    assert main(["plugins", "list", "--kind", "store"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["kind", "name", "status", "distribution", "version", "note"]
    assert [line.split()[:3] for line in lines] == [
        [row["kind"], row["name"], row["status"]] for row in rows
    ]


def test_each_part_of_a_run_is_listed_with_a_distribution_of_its_own(capsys):
    assert main(["plugins", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {f"{row['kind']}.{row['name']}": row["dist"] for row in rows}
    wanted = {
        "store.memory": "agl-store-memory",
        "tracer.otel": "agl-tracer-otel",
        "tracer.dummy": "agl-tracer-dummy",
        "execution.shm": "agl-exec-shm",
        "algorithm.baseline": "agl-algorithm-kit",
    }
    assert {key: found.get(key) for key in wanted} == wanted


def test_list_all_adds_what_could_be_installed(capsys):
    assert main(["plugins", "list", "--all", "--kind", "proxy", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["litellm"]["status"] == "not installed"
    assert rows["litellm"]["dist"] == "agl-proxy-litellm"
    assert rows["litellm"]["error"] == remedy("proxy", "litellm")
    assert main(["plugins", "list", "--all", "--kind", "proxy"]) == 0
    assert rows["litellm"]["error"] in capsys.readouterr().out


def test_show_describes_the_options(capsys):
    assert main(["plugins", "show", "store.memory"]) == 0
    text = capsys.readouterr().out
    assert "factory:      agl_store_memory" in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("thread_safe")] == [
        ["thread_safe", "bool", "True"]
    ]
    assert main(["plugins", "show", "memory", "--kind", "store", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plugin"]["dist"] == "agl-store-memory"
    assert said["spec"]["name"] == "memory"
    assert said["config"]["additionalProperties"] is False
    assert said["config"]["properties"]["scan_debounce_seconds"]["type"] == "number"


def test_show_describes_what_has_no_options(capsys):
    assert main(["plugins", "show", "command.version"]) == 0
    assert "target:       agl_cli_kit.version_command:version" in capsys.readouterr().out


def test_a_name_of_several_kinds_has_to_be_said_in_full(capsys, monkeypatch):
    records = [
        PluginRecord(kind, "same", "d", "1", "ok", "", "no_module") for kind in ("app", "command")
    ]
    reset_registry(Registry([*Registry.discover().records, *records]))
    try:
        assert main(["plugins", "show", "same"]) == 2
    finally:
        reset_registry()
    assert "'same' could be command.same, app.same" in capsys.readouterr().err


def test_options_are_shown_with_the_types_that_people_write(capsys):
    assert main(["plugins", "show", "adapter.triplet"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    (match,) = (row for row in rows if row[0] == "agent_match")
    assert match[1:5] == ["str", "|", "None", "None"]
    (reward,) = (row for row in rows if row[0] == "reward_match")
    assert reward[1:3] == ["RewardMatchPolicy", "'first_occurrence'"]


def test_the_doctor_finds_no_problems_in_the_usual_plugins(capsys):
    assert main(["plugins", "doctor", "--kind", "tracer", "--json", "--strict"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["key"]: row["status"] for row in rows}["tracer.otel"] == "ok"
    assert all(row["seconds"] > 0 for row in rows)
    assert main(["plugins", "doctor", "--kind", "store", "--no-build"]) == 0
    assert "store.memory" in capsys.readouterr().out


def test_a_terminal_gets_a_rich_table(monkeypatch, capsys):
    from agl_cli_kit import output

    monkeypatch.setattr(output, "in_terminal", lambda: True)
    output.print_table(["name", "status"], [["a", "ok"]], title="Plugins")
    text = capsys.readouterr().out
    assert "Plugins" in text
    assert "name" in text
    output.print_json({"a": 1})
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_json_has_null_in_place_of_numbers_that_it_does_not_have(capsys):
    from agl_cli_kit import output

    output.print_json({"a": [1.5, math.nan, (-math.inf, True)], "b": {"c": math.inf}})
    assert capsys.readouterr().out == '{"a": [1.5, null, [null, true]], "b": {"c": null}}\n'
