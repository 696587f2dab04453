"""Tests of ``agl train --run`` and ``--resume``, and of the default store."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from agl_cli_kit import main
from agl_train.runs import RunRecord, command_again

pytest.importorskip("agl_store_sqlite")

SLOW = """

@agl.rollout
def slow(task, prompt_template):
    import pathlib, time
    with pathlib.Path("done.txt").open("a") as file:
        file.write(task["q"])
    time.sleep(0.15)
    return 1.0
"""


def test_the_default_store_is_said_first_and_keeps_everything(project, agl):
    first = agl("train", "train.toml")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == f"store: sqlite, {project / 'agl.db'}"
    second = agl("train", "train.toml", "--json")
    assert json.loads(second.stdout)["run"]["name"] == "train-2"
    assert json.loads(second.stdout)["metrics"]["rollouts"] == 5
    assert second.stderr.startswith("store: sqlite, ")
    scored = agl("eval", "train.toml")
    assert scored.stdout.startswith("store: sqlite, ")
    assert "train-2/default" in scored.stdout


def test_without_the_plugin_the_store_is_in_memory_and_says_so(project, agl):
    done = agl("train", "train.toml", AGL_DISABLE_PLUGINS="store.sqlite")
    assert done.stdout.splitlines()[0] == (
        "store: memory, its data is lost when this process ends; store.sqlite is disabled"
    )
    assert not (project / "agl.db").exists()


@pytest.mark.usefixtures("project")
def test_a_name_that_is_taken_or_unknown_is_one_line(capsys):
    assert main(["train", "train.toml", "--resume", "--run", "night"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "agl: error: --resume: there is no run 'night' to resume; the store has none"
    assert main(["train", "train.toml", "--run", "night", "--json"]) == 0
    capsys.readouterr()
    assert main(["train", "train.toml", "--run", "night"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("agl: error: --run: the run 'night' exists already: resume it")
    assert main(["train", "train.toml", "--run", "a b"]) == 2
    assert "a run's name is made of" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "train.toml", "--run", ""],
        ["eval", "train.toml", "--run", " "],
        ["eval", "train.toml", "--resources", ""],
    ],
)
def test_a_variable_that_is_not_set_is_no_name(capsys, arguments):
    assert main(arguments) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{arguments[2]}" in said
    assert "must not be empty" in said


@pytest.mark.usefixtures("project")
def test_a_finished_run_reports_its_result_again(capsys):
    assert main(["train", "train.toml", "--json", "--run", "night"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["train", "train.toml", "--run", "day"]) == 0
    capsys.readouterr()
    assert main(["train", "train.toml", "--json", "--run", "night", "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["best_resources"] == first["best_resources"]
    counts = ("rollouts", "succeeded", "failed", "cancelled")
    assert [again["metrics"][c] for c in counts] == [first["metrics"][c] for c in counts]
    assert first["metrics"]["rollouts"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_an_interrupted_run_resumes(project, agl, number, strategy):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(SLOW)
    command = ["train", "train.toml", "--json"]
    for setting in (
        "agent=agl_cli_agent.py:slow",
        f"strategy={strategy}",
        "algorithm.n_epochs=3",
        "trainer.port=0" if strategy == "cs" else "trainer.n_runners=2",
    ):
        command += ["--set", setting]
    done = project / "done.txt"
    broken = subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (done.exists() and len(done.read_text()) >= 4):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(broken.pid, number)
    assert broken.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert broken.stderr is not None
    broken.stderr.close()
    begun = len(done.read_text())
    assert begun < 15

    resumed = agl(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    said = json.loads(resumed.stdout)
    assert said["run"]["name"] == "train"
    assert said["metrics"]["succeeded"] == said["metrics"]["rollouts"] == 15
    # Only the interrupted rollouts ran a second time.
    assert 15 <= len(done.read_text()) <= 15 + 2


UNNAMED = """

from agl_algorithm_kit import run_batch
from agl_core.errors import RunFailedError

@agl.algo
async def unnamed(*, store, train_dataset, val_dataset, initial_resources):
    await run_batch(store, train_dataset, resources=initial_resources)
    raise RunFailedError("it can be resumed")

@agl.rollout
def broken(task, prompt_template):
    raise RuntimeError("the model is down")
"""


def test_a_resumed_run_counts_batches_without_a_name(project, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(UNNAMED)
    options = ("--run", "night", "--set", "algorithm=agl_cli_agent:unnamed")
    first = agl("train", "train.toml", "--json", *options)
    count = json.loads(first.stdout)["metrics"]["rollouts"]
    assert count > 0
    resumed = agl("train", "train.toml", "--json", "--resume", *options)
    assert json.loads(resumed.stdout)["metrics"]["succeeded"] == count
    broken = ("--set", "agent=agl_cli_agent:broken")
    failed = agl("train", "train.toml", "--resume", *options, *broken)
    assert failed.returncode == 1
    assert f"because of RuntimeError the model is down ({count})" in " ".join(failed.stdout.split())


def test_the_hint_to_resume_is_a_command_that_works(project):
    record = RunRecord("my file.toml", name="night-2")
    command = command_again(
        "train", record, ["agent='a.py:b'", "store=sqlite"], "--run", record.name, "--resume"
    )
    words = ["agl", "train", "my file.toml", "--set", "agent='a.py:b'", "--set", "store=sqlite"]
    assert shlex.split(command) == [*words, "--run", "night-2", "--resume"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.n_runners=2", "trainer.n_runners=2"),
        ("proxy.api_key=sk-hidden", "proxy.api_key=***"),
        ("store.url='postgres://a:sk-hidden@h/d'", "store.url=***"),
        (
            "proxy={type='direct', api_key='sk-hidden', n=1}",
            "proxy={type='direct', api_key=***, n=1}",
        ),
        ('proxy={"api_key" = "sk\\"-hidden"}', 'proxy={"api_key" = ***}'),
        ("store=postgres://a:sk-hidden@host/d", "store=postgres://***@host/d"),
        ("algorithm.endpoint='http://a:sk@hidden@h'", "algorithm.endpoint='http://***@h'"),
        ("justaword", "justaword"),
    ],
)
def test_commands_have_no_secrets_because_logs_keep_them(override, expected):
    record = RunRecord("train.toml")
    words = shlex.split(command_again("train", record, [override], "--resume"))
    assert words == ["agl", "train", "train.toml", "--set", expected, "--resume"]


@pytest.mark.usefixtures("project")
def test_what_a_run_prints_to_do_next_has_no_secrets(capsys):
    resource = "resources.llm={type='llm', endpoint='e', model='m', api_key='sk-hidden'}"
    assert main(["train", "train.toml", "--set", resource]) == 0
    shown = capsys.readouterr()
    assert "score it: agl eval train.toml --set" in shown.out
    assert "api_key=***" in shown.out
    assert "sk-hidden" not in shown.out + shown.err
