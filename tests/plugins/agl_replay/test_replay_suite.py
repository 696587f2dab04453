"""``agl eval --record`` and ``agl eval --replay``: recorded rollouts as regression tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.errors import ConfigError, SpansEvictedError
from agl_replay import SuiteResult, read_suite
from agl_replay.evaluation import record_evaluation
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

from .recorded_rollouts import run_agent
from .replay_agents import WeatherAgent, weather_script

# One worker runs all these tests, because each further worker would record the suite again.
pytestmark = pytest.mark.xdist_group("replay_suite")

AGENT = """
import agl_core as agl
from openai import OpenAI

@agl.operation
def look_up(task, api_key):
    return task["city"].lower()

class Solver(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        llm = resources["llm"]
        prompt = resources["prompt"].format(city=task["city"])
        with OpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            def ask(question):
                message = {"role": "user", "content": question}
                answer = client.chat.completions.create(model=llm.model, messages=[message])
                return answer.choices[0].message.content
            look_up(task, "sk-operation-canary")
            first = ask(prompt)
            return float(ask(f"Sure? {first}") == task["answer"])
"""
CANARY = "sk-canary-2b7e151628aed2a6"
TASKS = [
    {"city": "Paris", "answer": "sunny"},
    {"city": "Oslo", "answer": "rain"},
    {"city": "Rome", "answer": "rain"},
]


def forecast(seen: SeenRequest) -> Reply:
    said = seen.body["messages"][-1]["content"]
    return Reply("rain" if "Oslo" in said or "rain" in said else "sunny")


def train_file(endpoint: str, template: str = "Weather in {city}?") -> str:
    return f"""
agent = "suite_agent.py:Solver"
val_dataset = "tasks.jsonl"
trainer = {{ n_runners = 1 }}
strategy = "shm"

[resources.llm]
type = "llm"
endpoint = "{endpoint}"
model = "m"
api_key = "{CANARY}"

[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "{template}"
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an agent, whose evaluation is recorded; its model server is gone."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "suite_agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    with ScriptedModels(forecast) as models:
        (folder / "train.toml").write_text(train_file(models.base_url))
        done = run_agl(folder, "eval", "train.toml", "--record", "suite.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "3 of 3 rollouts recorded in suite.jsonl"
    return folder


@pytest.fixture
def project(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a copy of the recorded folder."""
    for name in ("suite_agent.py", "tasks.jsonl", "train.toml", "suite.jsonl"):
        shutil.copy(recorded / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("suite_agent", None)


def run_agl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``agl`` in a process without keys and settings of this one."""
    kept = ("PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "agl_cli_kit", *arguments],
        cwd=folder,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def evaluate(project: Path, capsys: pytest.CaptureFixture[str]):
    """Return a function that replays the suite: its exit code and its JSON."""
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        sys.modules.pop("suite_agent", None)
        code = main(["eval", "train.toml", "--replay", "suite.jsonl", "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_an_unchanged_agent_passes(evaluate: Any):
    code, said = evaluate()
    assert (code, said["tasks"], said["changed"], said["worse"]) == (0, 3, 0, 0)
    assert said["reward"] == {"then": pytest.approx(2 / 3), "now": pytest.approx(2 / 3)}
    assert [one["task"] for one in said["results"]] == TASKS
    assert [one["answered"] for one in said["results"]] == [2, 2, 2]


def test_a_changed_question_is_found_with_its_place(evaluate: Any, project: Path):
    edit(project / "suite_agent.py", "Sure?", "Is it")
    code, said = evaluate()
    assert (code, said["changed"]) == (1, 3)
    places = {one["changed_at"] for one in said["results"]}
    assert places == {"call 2: messages[0].parts[0].content"}


def test_a_changed_prompt_of_the_train_file_is_found(evaluate: Any, project: Path):
    edit(project / "train.toml", "Weather in", "Rain in")
    code, said = evaluate()
    assert (code, said["changed"]) == (1, 3)
    assert said["results"][0]["divergence"]["differences"] == [
        {
            "place": "messages[0].parts[0].content",
            "then": "Weather in Paris?",
            "now": "Rain in Paris?",
        }
    ]


def test_a_changed_reward_is_found(evaluate: Any, project: Path):
    edit(project / "suite_agent.py", '== task["answer"]', '== "rain"')
    code, said = evaluate()
    found = [(one["changed_at"], one["reward_change"]) for one in said["results"]]
    assert (code, found) == (1, [("reward", -1.0), (None, 0.0), (None, 0.0)])


def test_live_models_show_the_reward_of_what_changed(evaluate: Any, project: Path):
    edit(project / "suite_agent.py", "Sure?", "Is it")
    with ScriptedModels([Reply("sunny"), Reply("sunny"), Reply("rain")]) as models:
        live = ["--live-from-divergence", "--live", f"m={models.base_url}"]
        code, said = evaluate(*live)
        assert [seen.body["messages"][0]["content"] for seen in models.requests] == [
            "Is it sunny",
            "Is it rain",
            "Is it sunny",
        ]
    assert [one["reward_change"] for one in said["results"]] == [0.0, -1.0, 1.0]
    assert (code, said["changed"], said["worse"]) == (1, 3, 1)
    with ScriptedModels(forecast) as models:
        code, said = evaluate("--live-from-divergence", "--live", f"m={models.base_url}")
    assert (code, said["changed"], said["worse"]) == (0, 3, 0), "no reward is lower"


def test_the_table_shows_each_changed_task(
    evaluate: Any, project: Path, capsys: pytest.CaptureFixture[str]
):
    edit(project / "suite_agent.py", "Sure?", 'Is it" if "rain" in first else f"Sure?')
    edit(project / "suite_agent.py", 'f"Is it"', 'f"Is it {first}"')
    sys.modules.pop("suite_agent", None)
    assert main(["eval", "train.toml", "--replay", "suite.jsonl"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "then", "now", "change", "differs", "at"]
    assert "Oslo" in lines[1]
    assert lines[1].endswith("1     none  -1      call 2: messages[0].parts[0].content")
    assert '  + "Is it rain"' in lines
    assert lines[-2:][0] == "mean reward: 0.6667 then, 0 now"
    assert lines[-1].startswith("2 of 3 tasks as recorded in suite.jsonl, 5 recorded answers in ")


def test_a_suite_holds_no_secret(project: Path):
    text = (project / "suite.jsonl").read_text()
    assert len(read_suite(project / "suite.jsonl").recordings) == 3
    assert [secret for secret in (CANARY, "operation-canary") if secret in text] == []
    assert "[redacted]" in text


def test_a_replay_of_a_suite_needs_nothing_but_its_files(project: Path):
    """A process without store, keys and model server passes, and leaves no file behind."""
    before = sorted(path.name for path in project.iterdir())
    done = run_agl(project, "eval", "train.toml", "--replay", "suite.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 of 3 tasks as recorded in suite.jsonl, 6 recorded answers in" in done.stdout
    assert sorted(path.name for path in project.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay", "gone.jsonl"], "the suite gone.jsonl cannot be read: No such file"),
        (["--replay", "tasks.jsonl"], "tasks.jsonl is not a suite of recorded rollouts"),
        (["--replay", "suite.jsonl", "--timeout", "3"], "--replay excludes --record"),
        (["--live-from-divergence"], "--live-from-divergence and --live need --replay"),
        (
            ["--replay", "suite.jsonl", "--live", "m=http://a"],
            "--live needs --live-from-divergence",
        ),
    ],
)
def test_mistakes(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    capsys.readouterr()
    assert main(["eval", "train.toml", *arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_rollouts_without_a_model_call_are_left_out(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    edit(project / "suite_agent.py", "        llm =", "        return 1.0\n        llm =")
    sys.modules.pop("suite_agent", None)
    before = (project / "suite.jsonl").read_bytes()
    assert main(["eval", "train.toml", "--record", "suite.jsonl", "--json"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "there is no recording to write: rollout ro-" in line
    assert line.endswith("cannot be replayed: it made no model call (and 2 more rollouts)")
    assert (project / "suite.jsonl").read_bytes() == before


def test_what_a_replay_does_not_use_may_be_missing(evaluate: Any, project: Path):
    text = (project / "train.toml").read_text()
    unused = ("train_dataset", "test_dataset", "algorithm", "adapter", "proxy", "tracker")
    missing = "".join(f'{key} = "gone.jsonl"\n' for key in unused)
    (project / "train.toml").write_text(f'interceptors = ["gone:it"]\n{missing}{text}')
    assert evaluate()[0] == 0


def test_a_suite_without_recordings_is_refused_in_one_line(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    suite = project / "suite.jsonl"
    suite.write_text(suite.read_text().splitlines()[0] + "\n")
    capsys.readouterr()
    assert main(["eval", "train.toml", "--replay", "suite.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    again = "record it again with `agl eval train.toml --record suite.jsonl`"
    assert line.endswith(f"the suite suite.jsonl has no recording; {again}")
    with pytest.raises(ConfigError, match="without recordings has no mean reward"):
        SuiteResult([]).rewards  # noqa: B018


class Evicting(InMemoryLightningStore):
    """A store that has dropped the spans of a rollout."""

    evicted = ""

    async def query_spans(self, rollout_id: str, *args: Any, **kwargs: Any) -> Any:
        if rollout_id == self.evicted:
            raise SpansEvictedError(f"The spans of rollout {rollout_id} were evicted from memory")
        return await super().query_spans(rollout_id, *args, **kwargs)


async def test_rollouts_without_a_recording_are_left_out_with_the_reason(tmp_path: Path):
    store, path = Evicting(), tmp_path / "suite.jsonl"
    with ScriptedModels(weather_script) as models:
        kept = await run_agent(WeatherAgent(), store, models)
        evicted = await run_agent(WeatherAgent(), store, models)
    store.evicted = evicted.rollout_id
    waiting = await store.enqueue_rollout("never run")
    ids = [waiting.rollout_id, evicted.rollout_id, kept.rollout_id]

    assert await record_evaluation(store, ids, path, {}) == [
        f"rollout {waiting.rollout_id} has no attempt yet",
        f"The spans of rollout {evicted.rollout_id} were evicted from memory",
    ]
    assert [one.rollout.rollout_id for one in read_suite(path).recordings] == [kept.rollout_id]
    with pytest.raises(ConfigError, match=r"no recording to write: rollout ro-\w+ has no attempt"):
        await record_evaluation(store, ids[:1], path, {})
