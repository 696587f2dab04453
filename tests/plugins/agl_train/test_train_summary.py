"""What ``agl train`` prints at its end: metrics as curves, the winner, what to do next."""

from __future__ import annotations

import json
import math
import shlex

import pytest

from agl_cli_kit import main
from agl_train.curves import curve

pytest.importorskip("agl_store_sqlite")


def test_a_curve_shows_the_way_from_the_first_value_to_the_last():
    line = "▁▅█▄  0 to 0.4 in 4 steps, max 1"
    assert curve([0, 0.5, 1, 0.4], "utf-8") == line
    assert curve([0, 0.5, 1, 0.4], "ascii") == "_-#-  0 to 0.4 in 4 steps, max 1"
    assert curve([2, 2], "utf-8") == "▁▁  2 to 2 in 2 steps, max 2"


def test_a_long_curve_is_as_wide_as_a_line():
    bars, _, rest = curve([float(step) for step in range(1000)], "utf-8").partition("  ")
    assert (len(bars), bars[0], bars[-1]) == (40, "▁", "█")
    assert rest == "0 to 999 in 1000 steps, max 999"


def test_values_that_are_not_finite_are_left_out():
    assert curve([math.nan, 1.0], "utf-8") == ""
    assert curve([0.0, math.inf, 1.0], "utf-8").endswith("0 to 1 in 2 steps, max 1")


@pytest.mark.usefixtures("project")
def test_the_summary_has_the_curve_the_winner_and_what_to_do_next(capsys):
    options = ["--set", "algorithm.n_epochs=3", "--set", "store={type='sqlite', path='runs.db'}"]
    assert main(["train", "train.toml", *options]) == 0
    out = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "in 3 steps" in lines["reward"]
    assert "train/default (version 1)" in lines["best resources"]
    assert "--resources train/default" in lines[next(key for key in lines if "score it" in key)]
    assert "agl trace latest --path" in out
    assert "agl dashboard" in out
    assert "runs.db" in out
    assert "resume it" not in out


def suggested(out: str, what: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith(f"{what}: ")]
    return line.removeprefix(f"{what}: ")


@pytest.mark.usefixtures("project")
def test_the_printed_command_scores_the_result(capsys):
    options = ["--set", "store={type='sqlite', path='runs.db'}"]
    assert main(["train", "train.toml", *options]) == 0
    agl, *words = shlex.split(suggested(capsys.readouterr().out, "score it"))
    assert agl == "agl"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["mean"] == pytest.approx(2 / 3)


SERVED = """
from agl_algorithm_kit import run_batch
from agl_core.types import ProxyLLM, PromptTemplate

async def learn(store, train_dataset, val_dataset):
    prompt = PromptTemplate(template="{q}!", engine="f-string")
    await run_batch(store, train_dataset, resources={"prompt": prompt})
    model = ProxyLLM(endpoint="http://127.0.0.1:9", model="trained")
    await store.add_resources({"prompt": prompt, "model": model})
"""


def test_a_model_whose_proxy_has_ended_is_to_be_served_before_it_is_scored(project, capsys):
    (project / "served.py").write_text(SERVED)
    options = ["--set", "algorithm=served:learn", "--set", "store={type='sqlite', path='runs.db'}"]
    assert main(["train", "train.toml", *options]) == 0
    said = suggested(capsys.readouterr().out, "score it")
    assert said == "serve the trained model first; the proxy of the run has ended"


@pytest.mark.usefixtures("project")
def test_nothing_to_look_at_is_suggested_for_a_store_in_memory(capsys):
    assert main(["train", "train.toml", "--set", "store=memory"]) == 0
    out = capsys.readouterr().out
    assert "score it" not in out
    assert "agl trace" not in out
