"""``agl replay`` over a store in a file."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_replay import read_suite, replay
from agl_replay.cli import live_model_list
from agl_scripted import Reply, ScriptedModels
from agl_store_sqlite import SqliteLightningStore

from .recorded_rollouts import run_agent
from .replay_agents import WeatherAgent, weather_script

AGENT = """
from tests.plugins.agl_replay.replay_agents import WeatherAgent

solve = WeatherAgent()
other = WeatherAgent(question="And in {}?")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Record a rollout in ``agl.db`` of a folder; return the folder and the rollout's id."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "replayed_agent.py").write_text(AGENT)

    async def run() -> str:
        store = SqliteLightningStore(str(folder / "agl.db"))
        try:
            with ScriptedModels(weather_script) as models:
                return (await run_agent(WeatherAgent(), store, models)).rollout_id
        finally:
            await store.close()

    return folder, asyncio.run(run())


@pytest.fixture
def rollout(recorded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Change to the folder of the recorded rollout; return its id."""
    monkeypatch.chdir(recorded[0])
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    monkeypatch.delitem(sys.modules, "replayed_agent", raising=False)
    return recorded[1]


def test_a_replay_that_is_the_same(rollout: str, capsys: pytest.CaptureFixture[str]):
    assert main(["replay", rollout[3:], "--agent", "replayed_agent.py:solve"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"rollout {rollout}: 2 of 2 calls answered from the recording")
    assert lines[1:] == ["reward: 1 then, 1 now", "same calls, reward and spans"]


def test_a_replay_that_differs(rollout: str, capsys: pytest.CaptureFixture[str]):
    assert main(["replay", "latest", "--agent", "replayed_agent.py:other"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "call 1 differs from the recorded one:",
        "messages[0].parts[0].content:",
        '  - "What is the weather in Paris?"',
        '  + "And in Paris?"',
        "reward: 1 then, none now",
    ]


def test_json_output(rollout: str, capsys: pytest.CaptureFixture[str]):
    agent = "replayed_agent.py:other"
    assert main(["replay", rollout, "--path", "agl.db", "--agent", agent, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["rollout_id"] == rollout
    assert (printed["same"], printed["answered"], printed["calls"]) == (False, 0, 2)
    assert printed["reward"] == {"then": 1.0, "now": None}
    assert printed["divergence"] == {
        "call": 1,
        "operation": None,
        "differences": [
            {
                "place": "messages[0].parts[0].content",
                "then": "What is the weather in Paris?",
                "now": "And in Paris?",
            }
        ],
    }


def test_a_train_file_names_the_agent(rollout: str, capsys: pytest.CaptureFixture[str]):
    Path("train.toml").write_text('agent = "replayed_agent.py:solve"\nalgorithm = "gone"\n')
    assert main(["replay", rollout, "--until", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "stopped after call 1"
    Path("train.toml").unlink()


def test_the_store_of_a_train_file_is_not_opened(rollout: str, tmp_path: Path):
    file = tmp_path / "train.toml"
    file.write_text(f'agent = "{Path.cwd()}/replayed_agent.py:solve"\nstore = "gone"\n')
    assert main(["replay", rollout, "--path", "agl.db", "--agent", str(file)]) == 0
    assert list(tmp_path.iterdir()) == [file]


def test_a_rollout_is_saved_to_a_suite(
    rollout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    suite = tmp_path / "suite.jsonl"
    for _ in range(2):  # the second time it replaces itself
        assert main(["replay", "latest", "--save", str(suite)]) == 0
        assert capsys.readouterr().out == f"{rollout} saved; {suite} has 1 recording\n"
    (recording,) = read_suite(suite).recordings
    assert asyncio.run(replay(WeatherAgent(), recording)).same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latest"], "there is no file train.toml: name the agent, e.g. --agent agent.py:solve"),
        (["ro-none", "--agent", "replayed_agent.py:solve"], "the store has no rollout 'ro-none'"),
        (["latest", "--agent", "gone.py:solve"], "there is no file"),
        (
            ["latest", "--agent", "replayed_agent.py:solve", "--fork-at", "1", "--until", "1"],
            "--fork-at and --until exclude each other",
        ),
        (
            ["latest", "--agent", "replayed_agent.py:solve", "--fork-at", "1", "--live", "m"],
            "--live takes MODEL=BASE_URL, not 'm'",
        ),
        (
            ["latest", "--agent", "replayed_agent.py:solve", "--fork-at", "3"],
            "recorded 2 calls: fork it at 2 or less, not at 3",
        ),
        (
            ["latest", "--save", "gone/suite.jsonl"],
            "error: gone/suite.jsonl cannot be written: No such file or directory",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(
    rollout: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert main(["replay", *arguments]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "--traceback" not in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--samples 4", "--samples needs --fork-at"),
        ("--live m=http://a/v1", "--live needs --fork-at or --on-divergence live"),
        ("--api-key key", "--api-key needs --fork-at or --on-divergence live"),
        ("--check --fork-at 1", "--check and --fork-at exclude each other"),
        ("--check --until 1", "--check and --until exclude each other"),
        ("--save s.jsonl --fork-at 1", "--save and --fork-at exclude each other"),
        ("--save s.jsonl --check", "--save and --check exclude each other"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    rollout: str, capsys: pytest.CaptureFixture[str], options: str, message: str
):
    arguments = ["latest", "--agent", "replayed_agent.py:solve", *options.split()]
    assert main(["replay", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("s.jsonl").exists()


def test_a_replay_takes_no_key_from_the_environment(rollout: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGL_PROXY_API_KEY", "of-another-command")
    assert main(["replay", "latest", "--agent", "replayed_agent.py:solve"]) == 0


def test_forks_are_shown_as_a_tree_and_exported(
    recorded: tuple[Path, str], rollout: str, capsys: pytest.CaptureFixture[str]
):
    shutil.copy("agl.db", "forks.db")
    with ScriptedModels([Reply("It is sunny."), Reply("It is rain.")]) as models:
        live = ["--live", f"m={models.base_url}", "--path", "forks.db"]
        command = ["replay", rollout, "--agent", "replayed_agent.py:solve", *live]
        assert main([*command, "--fork-at", "1", "--samples", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pattern = r"fork (ro-\w+) after call 1: succeeded, reward (\d)"
    found = [re.fullmatch(pattern, line) for line in lines]
    forks = {match[1]: match[2] for match in found if match}
    assert sorted(forks.values()) == ["0", "1"]

    assert main(["trace", next(iter(forks)), "--forks", "--path", "forks.db"]) == 0
    tree = capsys.readouterr().out.splitlines()
    assert tree[0] == f"{rollout}: succeeded, reward 1"
    assert {line[3:] for line in tree[1:]} == {
        f"{key}: after call 1, succeeded, reward {value}" for key, value in forks.items()
    }
    assert main(["trace", next(iter(forks)), "--path", "forks.db"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"fork of {rollout} after call 1"

    assert main(["export", "rl", "rows.jsonl", "--path", "forks.db"]) == 0
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert sum(len(row["responses"]) for row in rows) == 4, "each sampled answer is in one row"
    origin = {row["rollout_id"]: (row["parent_id"], row["turn"]) for row in rows}
    assert origin == {rollout: (None, None), **dict.fromkeys(forks, (rollout, 1))}


def test_live_models():
    (plain, known) = live_model_list(["org/m=http://a/v1", "openai/gpt=http://b/v1"], "key")
    assert plain["model_name"] == "org/m"
    assert plain["litellm_params"]["model"] == "hosted_vllm/org/m"
    assert (known["model_name"], known["litellm_params"]["model"]) == ("gpt", "openai/gpt")
