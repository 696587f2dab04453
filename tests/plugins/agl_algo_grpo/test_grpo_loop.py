"""Training runs with real servers, proxies and stores, and their recovery from failures."""

from __future__ import annotations

import asyncio
import csv
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

import agl_core as agl
from agl_algo_grpo import GRPO
from agl_core.algorithm import RunContext
from agl_core.errors import ConfigError, LLMServerError, RunFailedError
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_store_memory import InMemoryLightningStore
from agl_testing.algorithm import AlgorithmSuite
from tests.processes import is_running, running_below

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

ACTOR = Path(__file__).with_name("grpo_actor.py")
SERVER: dict[str, Any] = {"type": "hf", "threads": 1}
TINY: dict[str, Any] = {
    "tasks_per_step": 2,
    "group_size": 4,
    "learning_rate": 1e-3,
    "max_tokens": 6,
    "server": SERVER,
    "threads": 1,
}


def talk(llm: agl.LLM) -> float:
    """Call the model twice; the reward grows with the number of distinct characters."""
    messages: Any = [{"role": "user", "content": "Go."}]
    with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
        for _ in range(2):
            answer = client.chat.completions.create(model=llm.model, messages=messages)
            text = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    return len(set(text)) / 10


@agl.rollout
def agent(task: int, llm: agl.LLM) -> float:
    return talk(llm)


def train(
    folder: Path,
    model: Path,
    agent: Any = agent,
    *,
    tasks: Sequence[int] = range(6),
    runners: int = 4,
    val: Any = None,
    **options: Any,
) -> tuple[GRPO, list[dict[str, str]]]:
    algorithm = GRPO(model=model, output_dir=str(folder), **{**TINY, **options})
    trainer = agl.Trainer(
        algorithm=algorithm, adapter="trajectory", strategy="shm", n_runners=runners
    )
    trainer.fit(agent, list(tasks), val_dataset=val)
    return algorithm, read(folder)


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def servers(parent: int | None = None) -> list[psutil.Process]:
    """Return the LLM servers among a process's descendants; None is this process."""
    return running_below("agl_server_hf.worker", parent)


class TestGRPOConformance(AlgorithmSuite):
    flags = frozenset()

    @pytest.fixture
    def algorithm(self, taught: Path, tmp_path: Path) -> GRPO:
        return GRPO(model=taught, output_dir=str(tmp_path), **{**TINY, "steps": 1, "retries": 0})

    @pytest.fixture
    def agent(self) -> Any:
        return agent

    @pytest.fixture
    def adapter(self) -> str:
        return "trajectory"


def test_each_step_publishes_the_weights_it_trained(taught: Path, tmp_path: Path):
    algorithm, rows = train(
        tmp_path, taught, steps=3, kl=0.1, epochs=2, minibatches=2, val=[1, 2, 3]
    )
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    for row in rows:
        # Trainer and server hold the same model before every step, also after an update.
        assert float(row["logprob_delta"]) <= 1e-4
        assert row["version"] == f"step-{row['step']}"
        assert int(row["rollouts"]) == 8
        assert int(row["dropped_rollouts"]) == 0
    # The first minibatch is on-policy; the later ones have a ratio other than 1.
    assert all(float(row["ratio_max"]) > 1.0 for row in rows)
    assert float(rows[-1]["val_reward"]) > 0
    assert rows[0]["val_reward"] == ""
    before = AutoModelForCausalLM.from_pretrained(taught).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "weights" / "step-3").state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert all(torch.equal(served[key], after[key]) for key in after)
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert algorithm.metrics is not None
    assert len(algorithm.metrics.column("reward")) == 3
    assert isinstance(algorithm.context.strategy, SharedMemoryExecutionStrategy)
    assert servers() == []
    assert not running_below("agl_proxy_direct.worker")


def test_with_lora_only_the_adapter_is_trained(taught: Path, tmp_path: Path):
    _, rows = train(tmp_path, taught, steps=2, lora={"r": 4, "alpha": 8}, kl=0.01)
    assert max(float(row["logprob_delta"]) for row in rows) <= 1e-4
    assert float(rows[0]["kl"]) == 0.0  # a new adapter changes nothing
    assert sorted(p.name for p in (tmp_path / "model").glob("*.safetensors")) == [
        "adapter_model.safetensors"
    ]


def test_the_temperature_applies_to_rollouts_and_ratio(taught: Path, tmp_path: Path):
    _, rows = train(tmp_path, taught, steps=1, temperature=0.7)
    assert float(rows[0]["logprob_delta"]) <= 1e-4
    assert float(rows[0]["ratio_max"]) == pytest.approx(1.0, abs=1e-4)


def test_groups_without_a_signal_are_replaced_by_further_tasks(taught: Path, tmp_path: Path):
    """Only the tasks 4 and 5 have rewards that differ."""
    seen: Counter[int] = Counter()

    @agl.rollout
    def uneven(task: int, llm: agl.LLM) -> float:
        talk(llm)
        seen[task] += 1
        return float(seen[task] % 2) if task >= 4 else 0.5

    _, rows = train(tmp_path / "few", taught, uneven, runners=1, steps=1, resample=30)
    assert int(rows[0]["rollouts"]) == 8
    assert int(rows[0]["uniform_groups"]) * 4 == sum(seen[task] for task in range(4)) > 0
    assert seen[4] + seen[5] == 8
    assert float(rows[0]["grad_norm"]) > 0

    seen.clear()
    none: dict[str, Any] = {"tasks": [0, 1, 2], "runners": 1, "steps": 1, "resample": 2}
    with pytest.raises(RunFailedError, match="no step of 1 had a rollout to train on"):
        train(tmp_path / "none", taught, uneven, **none)
    rows = read(tmp_path / "none")
    assert int(rows[0]["rollouts"]) == 0
    assert seen.total() == 3 * 2 * 4
    assert int(rows[0]["dropped_groups"]) == 6


@pytest.mark.parametrize("how", ["kill", pytest.param("hang", marks=pytest.mark.heavy)])
def test_a_server_lost_during_a_step_is_restarted(taught: Path, tmp_path: Path, how: str):
    done: list[int] = []

    @agl.rollout
    def saboteur(task: int, llm: agl.LLM) -> float:
        done.append(task)
        if len(done) == 10:  # in the second step, when the weights are no longer the initial ones
            (server,) = servers()
            server.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        return talk(llm)

    _, rows = train(
        tmp_path, taught, saboteur, runners=3, steps=3, check_interval=0.5, hang_timeout=10
    )
    assert [int(row["server_restarts"]) for row in rows] == [0, 1, 0]
    for row in rows:
        assert float(row["logprob_delta"]) <= 1e-4  # it restarted with the weights it had
        assert int(row["rollouts"]) == 8
        assert int(row["dropped_groups"]) == 0
    assert servers() == []


def test_a_server_that_keeps_dying_ends_the_run_with_an_error(taught: Path, tmp_path: Path):
    @agl.rollout
    def saboteur(task: int, llm: agl.LLM) -> float:
        for server in servers():
            server.kill()
        return talk(llm)

    with pytest.raises(LLMServerError, match="after 1 restarts in one step"):
        train(tmp_path, taught, saboteur, runners=1, steps=1, max_server_restarts=1)
    assert servers() == []


def test_unusable_rollouts_are_repeated_then_counted(taught: Path, tmp_path: Path):
    tries = {task: itertools.count() for task in range(6)}

    @agl.rollout
    def unreliable(task: int, llm: agl.LLM) -> float | None:
        number = next(tries[task])
        if task == 0:
            raise RuntimeError("always")
        if task == 1 and number == 0:
            raise RuntimeError("once")
        reward = talk(llm)
        return math.nan if task == 2 and number == 0 else reward

    options: dict[str, Any] = {"steps": 1, "tasks_per_step": 6, "seed": 3}
    _, (row,) = train(tmp_path / "drop", taught, unreliable, **options)
    assert next(tries[0]) == 8  # four rollouts, each twice
    assert int(row["rollouts"]) == 20
    assert int(row["dropped_rollouts"]) == 4
    assert int(row["dropped_groups"]) == 1
    assert int(row["retried_rollouts"]) == 6
    assert row["dropped"] == "4 (rollout failed)"
    assert int(row["partial_groups"]) == 0


@pytest.mark.parametrize("greedy_too", [False, True], ids=["fixed", "one-greedy-call"])
def test_a_temperature_of_the_agents_own_ends_the_run_after_a_step(
    taught: Path, tmp_path: Path, greedy_too: bool
):
    runs = itertools.count()

    @agl.rollout
    def own(task: int, llm: agl.LLM) -> float:
        reward = talk(llm) if greedy_too else 0.0
        messages: Any = [{"role": "user", "content": "Go."}]
        with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
            client.chat.completions.create(
                model=llm.model, messages=messages, temperature=0.0 if greedy_too else 0.7
            )
        return reward + next(runs)

    sampling = "temperature=0" if greedy_too else "temperature=0.7"
    with pytest.raises(RunFailedError, match=rf"no rollout of the first step .*{sampling}"):
        train(tmp_path, taught, own, steps=3)
    assert next(runs) == 8  # one step, and none is repeated: a repetition cannot help
    assert not (tmp_path / "model").exists()


def test_incomplete_groups_are_trained_on_only_if_configured(
    taught: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    tries: Counter[int] = Counter()

    @agl.rollout
    def half(task: int, llm: agl.LLM) -> float:
        tries[task] += 1
        if tries[task] % 2:
            raise RuntimeError("every other time")
        return talk(llm)

    options: dict[str, Any] = {"steps": 1, "retries": 0}
    with pytest.raises(RunFailedError, match="no step of 1 had a rollout to train on"):
        train(tmp_path / "strict", taught, half, runners=1, **options)
    (strict,) = read(tmp_path / "strict")
    assert int(strict["rollouts"]) == 0
    assert int(strict["dropped_groups"]) == 2
    assert strict["dropped"] == "4 (rollout failed), 4 (its group is too small)"
    assert "no usable rollouts" in caplog.text
    caplog.clear()
    tries.clear()
    _, (lax,) = train(tmp_path / "lax", taught, half, runners=1, min_group_size=2, **options)
    assert int(lax["rollouts"]) == 4
    assert int(lax["partial_groups"]) == 2
    assert "trains on 2 incomplete groups" in caplog.text


def test_a_resumed_run_is_not_ended_by_a_step_without_rewards(taught: Path, tmp_path: Path):
    """It has trained before, so the step is not the first that shows whether any will."""
    left = itertools.count()

    @agl.rollout
    def late(task: int, llm: agl.LLM) -> float | None:
        reward = talk(llm)
        return reward if next(left) >= 8 else None

    train(tmp_path, taught, steps=1, checkpoint_every=1)
    checkpoint = tmp_path / "checkpoints" / "step-1"
    options: dict[str, Any] = {"resume_from": checkpoint, "retries": 0, "keep_checkpoints": 1}
    _, rows = train(tmp_path, taught, late, steps=3, **options)
    assert [int(row["rollouts"]) for row in rows] == [8, 0, 8]
    assert checkpoint.is_dir()  # another run wrote it
    assert (tmp_path / "checkpoints" / "step-3").is_dir()


def test_a_finished_run_goes_on_with_more_steps(
    taught: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = InMemoryLightningStore()

    def steps(number: int) -> list[dict[str, str]]:
        trainer = agl.Trainer(
            algorithm=GRPO(model=taught, output_dir=str(tmp_path), **TINY, steps=number),
            adapter="trajectory",
            strategy="shm",
            n_runners=4,
            store=store,
            run="night",
        )
        trainer.fit(agent, list(range(6)))
        assert asyncio.run(store.query_rollouts()).total == 8 * number
        return read(tmp_path)

    first, second, again = steps(1), steps(2), steps(2)
    assert [row["step"] for row in second] == ["0", "1"]
    assert second[:1] == first
    assert again == second
    assert caplog.text.count("The run 'night' is finished; nothing to do") == 1


# -- the trainer dies ------------------------------------------------------------------------------


def start_actor(folder: Path, model: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ACTOR), str(folder), str(model), *options]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()[-3000:]


@pytest.mark.heavy
def test_a_killed_trainer_resumes_from_its_checkpoint(taught: Path, tmp_path: Path):
    first = start_actor(tmp_path, taught)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:  # until the fourth and last step has started
        assert first.poll() is None, log_of(tmp_path)
        if (tmp_path / "metrics.csv").is_file() and len(read(tmp_path)) >= 3:
            break
        time.sleep(0.05)
    started = servers(first.pid)
    assert started, log_of(tmp_path)
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(started, timeout=20)
    # An orphan that ended stays a zombie until process 1 reaps it.
    assert not any(map(is_running, alive)), "the LLM server outlived its trainer"
    before = read(tmp_path)
    assert len(before) == 3

    second = start_actor(tmp_path, taught)
    assert second.wait(280) == 0, log_of(tmp_path)
    rows = read(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(4))
    for row in rows:
        assert float(row["logprob_delta"]) <= 1e-4, row
        assert int(row["rollouts"]) == 8
    # Steps since the checkpoint are computed again from the same rollouts.
    assert rows[:2] == before[:2]
    assert rows[2]["reward"] == before[2]["reward"]
    # Four steps of eight rollouts; only those in flight at the kill are repeated.
    again = sum(int(row["retried_rollouts"]) for row in rows)
    assert again <= 8
    assert f"rollouts: {32 + again}" in (tmp_path / "log.txt").read_text().splitlines()


@pytest.mark.heavy
def test_a_killed_runner_loses_no_group(taught: Path, tmp_path: Path):
    actor = start_actor(tmp_path, taught, "--steps", "2", "--deadly", str(tmp_path / "killed"))
    assert actor.wait(280) == 0, log_of(tmp_path)
    assert (tmp_path / "killed").is_file()
    rows = read(tmp_path)
    assert [int(row["rollouts"]) for row in rows] == [8, 8]
    assert [int(row["dropped_groups"]) for row in rows] == [0, 0]


# -- configuration errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"group_size": 1}, "GRPO.group_size"),
        ({"min_group_size": 9, "group_size": 8}, "GRPO: "),
        ({"minibatches": 99}, "GRPO: "),
        ({"learning_rat": 1}, "GRPO.learning_rat"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], path: str):
    with pytest.raises(ConfigError, match=f"^{path}"):
        GRPO(model="m", **options)


def test_missing_requirements_are_reported_before_the_run_starts(tmp_path: Path, taught: Path):
    def fit(algorithm: GRPO, adapter: str = "trajectory", tasks: Any = (1, 2)) -> None:
        agl.Trainer(algorithm=algorithm, adapter=adapter, strategy="shm").fit(agent, list(tasks))

    with pytest.raises(ConfigError, match=r"adapter: .*trajectory"):
        fit(GRPO(model=taught, output_dir=str(tmp_path)), adapter="triplet")
    with pytest.raises(ConfigError, match="train_dataset"):
        fit(GRPO(model=taught, output_dir=str(tmp_path)), tasks=())
    with pytest.raises(ConfigError, match="resume_from"):
        fit(GRPO(model=taught, output_dir=str(tmp_path), resume_from=str(tmp_path / "no")))
    with pytest.raises(ConfigError, match=r"algorithm\.model: .*nowhere"):
        fit(GRPO(model=tmp_path / "nowhere", output_dir=str(tmp_path)))


def test_building_the_algorithm_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from agl_core.plugins import build_component\n"
        "made = build_component('algorithm', {'type': 'grpo', 'model': 'm'})\n"
        "assert type(made).__name__ == 'GRPO'\n"
        "heavy = {'torch', 'transformers', 'peft', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_library_names_its_pip_command(monkeypatch: pytest.MonkeyPatch, taught: Path):
    monkeypatch.setattr(
        "agl_algo_grpo.algorithm.find_spec",
        lambda name: None if name == "torch" else find_spec(name),
    )
    with pytest.raises(ImportError, match=r"pip install 'torch'$"):
        agl.Trainer(algorithm=GRPO(model=taught), adapter="trajectory", strategy="shm").fit(
            agent, [1, 2]
        )


def test_the_train_file_of_the_example_is_valid():
    file = Path(__file__).parents[3] / "examples" / "rl_digits" / "train.toml"
    command = [sys.executable, "-m", "agl_cli_kit"]
    done = subprocess.run([*command, "train", "--check", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = subprocess.run([*command, "plugins", "list"], capture_output=True, text=True)
    assert "grpo" in listed.stdout
    assert "hf" in listed.stdout


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a proxy has no process of its own")
@pytest.mark.parametrize(
    ("strategy", "processes"), [(SharedMemoryExecutionStrategy(), 1), (None, 0)], ids=["shm", "cs"]
)
async def test_the_proxy_leaves_the_interpreter_lock_to_agents_of_this_process(
    strategy: SharedMemoryExecutionStrategy | None, processes: int
):
    algorithm = GRPO(model="any")
    algorithm.set_context(RunContext(store=InMemoryLightningStore(), strategy=strategy))
    proxy = algorithm.proxy()
    await proxy.start()
    try:
        assert len(running_below("agl_proxy_direct.worker")) == processes
    finally:
        await proxy.stop()
