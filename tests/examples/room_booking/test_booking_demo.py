"""The demo as a user runs it: APO on the simulated model, through the proxy."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agl_core import semconv
from agl_store_sqlite import SqliteLightningStore

EXAMPLE = Path(__file__).parents[3] / "examples" / "room_booking"
MAIN = str(EXAMPLE / "main.py")
QUICK = ("--rollouts", "200", "--held-out", "6")


def test_the_demo_ends_with_one_json_object_and_a_store_of_exact_calls(run, tmp_path: Path):
    code, out, err = run(MAIN, "--json", "--seed", "2", "--rollouts", "300")
    assert code == 0, err
    result = json.loads(out)
    assert result["status"] == "succeeded"
    assert result["simulated"] is True
    assert result["found"] in result["history"]
    assert result["seed_score"]["n"] == result["found_score"]["n"] == 120
    assert result["gain"]["low"] > 0.2
    assert result["gain_is_shown"] is True
    assert "is better than the seed: the whole interval of the gain is above 0" in result["verdict"]
    assert result["rollouts"] <= 300
    assert "a SIMULATED model answers" in err
    calls = asyncio.run(recorded(tmp_path / result["store"]))
    assert len(calls) == 2, "the agent asks for the tool, and answers"
    asked, answered = (
        [json.loads(one[f"gen_ai.{key}.messages"]) for one in calls] for key in ("input", "output")
    )
    assert [one["role"] for one in asked[1]] == ["system", "user", "assistant", "tool"]
    assert answered[0][0]["parts"][0]["name"] == "list_rooms"
    assert calls[1]["gen_ai.usage.input_tokens"] > 100


async def recorded(file: Path) -> list[dict[str, Any]]:
    """Return the attributes of the proxy's spans of the first rollout."""
    store = SqliteLightningStore(file)
    try:
        (rollout,) = (await store.query_rollouts(limit=1)).items
        spans = (await store.query_spans(rollout.rollout_id)).items
    finally:
        await store.close()
    return [dict(span.attributes) for span in spans if span.name == semconv.SPAN_MODEL_CALL]


def test_the_demo_prints_its_tables(run):
    code, out, err = run(MAIN, "--rollouts", "150", "--held-out", "12")
    assert code == 0, err
    assert "80 training, 48 validation and 12 held-out tasks" in err
    cost = (
        "A paid model would cost about $0.09 for at most 174 rollouts (0.19 million input and "
        "0.01 million output tokens, at $0.4 and $1.6 per million, see --price)"
    )
    assert 0 < err.index(cost) < err.index("80 training"), "before the run"
    assert "95 % interval" in out
    assert "Held-out tasks, SIMULATED model" in out
    assert "Not shown: the gain may be as low as -" in out  # 12 tasks say little
    assert "\nstart: best v0 " in err
    assert "\nround 1: best v" in err
    assert "stopping: 80 more rollouts may exceed max_rollouts = 150" in err


EQUAL_PROMPTS = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
from simulated_model import __main__ as server, booker
from simulated_model.rules import RULES
booker.followed = lambda instructions: [rule.name for rule in RULES]
sys.argv[1:] = ["--slip", "0.15", "--until-stdin-closes"]
server.main()
"""


def test_the_demo_announces_nothing_where_all_prompts_are_equal(run):
    """The model follows all rules whatever the prompt says, and sometimes forgets one."""
    with subprocess.Popen(
        [sys.executable, "-c", EQUAL_PROMPTS], stdin=-1, stdout=-1, stderr=-3, text=True
    ) as model:
        assert model.stdin is not None
        assert model.stdout is not None
        url = model.stdout.readline().strip()
        endpoint = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "-",
            "OPENAI_MODEL": "simulated-room-booker",
        }
        script = (
            f"import os, runpy, sys; os.environ |= {endpoint}; sys.path.insert(0, {str(EXAMPLE)!r})"
            f"; runpy.run_path({MAIN!r}, run_name='__main__')"
        )
        code, out, err = run("-c", script, "--rollouts", "300", "--held-out", "60")
        model.stdin.close()
    assert code == 0, err
    said = " ".join(out.split())
    assert "is too high by about" in said
    assert "Not shown: the gain may be as low as -" in said
    assert "is better than the seed" not in said


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_nothing_running_and_resume_ends_as_if_undisturbed(start, run):
    options = ("--json", "--seed", "3", *QUICK)
    with start(MAIN, *options) as process:
        lines: list[str] = []
        while not any(line.startswith("round 1: ") for line in lines):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    assert process.returncode == 130
    stopped = json.loads(out)
    assert stopped["status"] == "interrupted"
    command = shlex.split(stopped["resume"])
    assert command[:2] == [sys.executable, str(MAIN)]
    assert command[2:-3] == list(options)
    assert "Interrupted after measuring" in rest
    assert f"Nothing is lost. Go on with: {stopped['resume']}" in rest
    assert "Traceback" not in rest
    port = int(lines[0].split("127.0.0.1:")[1].split("/")[0])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass

    # As typed, in another directory.
    simulated = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    done = subprocess.run(
        command, cwd="/", env=simulated, capture_output=True, text=True, check=False
    )
    code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, err
    resumed = json.loads(out)
    code, out, err = run(MAIN, *options, "--store", "other.db")
    assert code == 0, err
    undisturbed = json.loads(out)
    for field in ("history", "found", "seed_score", "found_score", "rollouts"):
        assert resumed[field] == undisturbed[field], field


def test_resume_without_an_earlier_run_is_an_error(run):
    code, _, err = run(MAIN, "--resume")
    assert code == 2
    assert "There is no run with seed 7 to resume in agl-runs/room_booking/demo.db." in err


def test_help_shows_examples(run):
    code, out, _ = run(MAIN, "--help")
    assert code == 0
    assert "python examples/room_booking/main.py --json" in out


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_demo_improves_the_score_with_any_seed(run, seed: int):
    code, out, err = run(MAIN, "--json", "--seed", str(seed))
    assert code == 0, err
    result = json.loads(out)
    assert result["found_score"]["low"] > 0.8
    assert result["gain"]["low"] > 0.5
