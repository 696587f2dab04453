"""The whole loop on a CPU: agents in other processes train a tiny model.

Each test runs :file:`train_tiny.py` as a program: store server, runners in processes of their own,
proxy, verl's trainer with Ray, rollout server, spans, rows, steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("train_tiny.py")
TASKS = [{"question": f"say {number}"} for number in range(16)]


class Training:
    """A training run with its own folder.

    Args:
        folder: Where it writes.
        model: Folder of the model.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {
            "train": TASKS,
            "options": {"aggregation": "trajectory", "health_interval": 2.0},
            "config": {
                "trainer": {
                    "device": "cpu",
                    "logger": ["console", "file"],
                    "total_training_steps": 20,
                    "default_local_dir": str(folder / "checkpoints"),
                    "val_before_train": False,
                },
                "data": {
                    "train_batch_size": 8,
                    "max_prompt_length": 128,
                    "max_response_length": 128,
                },
                "algorithm": {"adv_estimator": "grpo"},
                "actor_rollout_ref": {
                    "model": {"path": str(model)},
                    "actor": {
                        "ppo_mini_batch_size": 8,
                        "ppo_micro_batch_size_per_gpu": 32,
                        "optim": {"lr": 5e-3},
                    },
                    "rollout": {"n": 4, "log_prob_micro_batch_size_per_gpu": 32},
                },
            },
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        file = self.folder / "settings.json"
        file.write_text(json.dumps(self.settings))
        environment = {
            **os.environ,
            "VERL_FILE_LOGGER_PATH": str(self.folder / "metrics.jsonl"),
            "TENSORBOARD_DIR": str(self.folder / "tensorboard"),
            "OMP_NUM_THREADS": "1",
            # Ray starts slowly on a busy machine.
            "RAY_raylet_start_wait_time_s": "180",
        }
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(file)],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = 700.0) -> None:
        """Wait until the program has ended without an error."""
        assert self.process is not None
        code = self.process.wait(seconds)
        assert code == 0, self.log[-4000:]

    def run(self) -> list[dict[str, Any]]:
        """Train to the end; return the metrics of each step."""
        self.start()
        self.wait()
        return self.metrics()

    def kill(self) -> None:
        """Kill the trainer if it still runs, and all processes that it left."""
        if self.process is None or self.process.poll() is not None:
            return
        family = self.family()
        self.process.kill()
        self.process.wait()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def family(self) -> list[psutil.Process]:
        """Return the processes below the program."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")

    def metrics(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        """Return the metrics of verl's file logger, one dict per step with the key ``step``."""
        file = self.folder / name
        lines = file.read_text().splitlines() if file.exists() else []
        found = []
        for line in lines:
            if line.endswith("}}"):  # the last line may be incomplete
                entry = json.loads(line)
                found.append({"step": entry["step"], **entry["data"]})
        return found

    def until_step(self, step: int, seconds: float = 600.0) -> None:
        """Wait until a step is done."""
        self.until(lambda: any(m["step"] >= step for m in self.metrics()), seconds)

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log[-4000:]
            assert time.monotonic() < deadline, self.log[-4000:]
            time.sleep(0.1)


@pytest.fixture
def training(tmp_path: Path, tiny_model: Path) -> Iterator[Training]:
    made = Training(tmp_path, tiny_model)
    yield made
    made.kill()


def mean(values: Any) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def assert_whole_batches(metrics: list[dict[str, Any]]) -> None:
    """Check that nothing was dropped and every group was complete."""
    for step in metrics:
        assert step["agl/rollouts"] == 8 * 4
        assert step["agl/groups"] == 8
        assert step["agl/groups_partial"] == step["agl/groups_dropped"] == 0
        assert step["agl/rows_dropped"] == step["agl/calls_without_token_ids"] == 0


def test_reward_rises_and_logprobs_agree_at_every_step(training: Training):
    training.settings["val"] = [{"question": "say x"}, {"question": "say y"}]
    trainer = training.settings["config"]["trainer"]
    trainer.update(test_freq=20, val_before_train=True, logger=["console", "file", "tensorboard"])
    before, *steps = training.run()
    assert [step["step"] for step in steps] == list(range(1, 21))
    rewards = [step["training/reward"] for step in steps]
    assert mean(rewards[-3:]) - mean(rewards[:3]) > 0.4, rewards
    gaps = [step["agl/logprob_gap_max"] for step in steps]
    assert max(gaps) < 1e-4, gaps
    assert_whole_batches(steps)
    assert {step["agl/rows_of_several_versions"] for step in steps} == {0}
    assert {step["training/off_policy/trajectory_staleness_worst/max"] for step in steps} == {0}
    assert steps[-1]["val/reward"] > before["val/reward"] + 0.4
    assert before["val/n_rollouts"] == 2
    assert list((training.folder / "tensorboard").glob("events.*"))


def test_a_killed_trainer_goes_on_from_its_last_checkpoint(training: Training):
    training.settings["run"] = "digits"
    training.settings["store"] = {"type": "sqlite", "path": str(training.folder / "store.db")}
    trainer = training.settings["config"]["trainer"]
    trainer.update(total_training_steps=14, save_freq=4)
    training.start()
    training.until_step(10)
    training.kill()
    before = training.metrics()
    saved = training.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    checkpoint = int(saved.read_text())
    assert checkpoint in (8, 12)
    after = training.run()
    assert [step["step"] for step in after] == list(range(checkpoint + 1, 15))
    learnt = next(m["training/reward"] for m in before if m["step"] == checkpoint)
    begun = next(m["training/reward"] for m in before if m["step"] == 1)
    assert learnt > begun + 0.1
    assert after[0]["training/reward"] > (learnt + begun) / 2
    assert training.metrics(f"metrics.until-{checkpoint}.jsonl") == before
    assert_whole_batches(after)
    state, statuses = _stored(training.folder / "store.db")
    assert state["state"]["step"] == 14  # verl saves the last step, too
    assert state["state"]["generation"] == 2
    assert state["finished"] is True
    assert statuses <= {"succeeded", "cancelled", "failed"}  # interrupted rollouts failed


def _stored(path: Path) -> tuple[dict[str, Any], set[str]]:
    """Return the run's checkpoint and the statuses of all rollouts."""
    program = (
        "import asyncio, json, sys\n"
        "from agl_core.plugins import build_component\n"
        "from agl_algorithm_kit import stored_runs\n"
        "async def main():\n"
        "    store = build_component('store', {'type': 'sqlite', 'path': sys.argv[1]})\n"
        "    run = (await stored_runs(store))['digits']\n"
        "    statuses = sorted({r.status for r in await store.query_rollouts()})\n"
        "    print(json.dumps([run.model_dump(), statuses]))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    state, statuses = json.loads(done.stdout.splitlines()[-1])
    return state, set(statuses)


def test_a_server_that_dies_and_a_runner_that_dies_cost_nothing_but_time(training: Training):
    once = [str(training.folder / f"fault-{place}") for place in range(2)]
    training.settings["train"] = [
        {**TASKS[0], "fault": "exit", "once": once[0]},
        {**TASKS[1], "fault": "raise", "once": once[1]},
        *TASKS[2:8],
    ]
    training.settings["options"]["drain_timeout"] = 10.0
    trainer = training.settings["config"]["trainer"]
    trainer.update(total_training_steps=8, save_freq=2)
    training.start()
    training.until_step(4)
    servers = [p for p in training.family() if "TransformersServer" in " ".join(p.cmdline())]
    assert len(servers) == 1
    os.kill(servers[0].pid, signal.SIGKILL)
    training.wait()
    after = training.metrics()
    checkpoint = after[0]["step"] - 1
    assert checkpoint in (4, 6)
    before = training.metrics(f"metrics.until-{checkpoint}.jsonl")
    assert [step["step"] for step in after] == list(range(checkpoint + 1, 9))
    assert f"resumes from the checkpoint of step {checkpoint}" in training.log
    # Each batch holds all eight tasks, so the first step had both faults.
    assert all(Path(file).exists() for file in once)
    assert before[0]["agl/rollouts_failed"] == before[0]["agl/rollouts_retried"] == 1
    assert before[0]["agl/attempts_lost"] == 1
    assert_whole_batches([*before, *after])
    assert max(step["agl/logprob_gap_max"] for step in [*before, *after]) < 1e-4


def test_one_step_off_with_critic_reference_and_correction(training: Training):
    training.settings["options"] = {
        "aggregation": "transition",
        "advantage_level": "row",
        "loss_level": "rollout",
    }
    training.settings["adapter"] = "triplet"
    config = training.settings["config"]
    config["trainer"].update(
        total_training_steps=6, save_freq=6, v1={"trainer_mode": "colocate_async"}
    )
    config["algorithm"] = {
        "adv_estimator": "gae",
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 2.0},
    }
    config["actor_rollout_ref"]["actor"].update(use_kl_loss=True, kl_loss_coef=0.001)
    config["actor_rollout_ref"]["ref"] = {"log_prob_micro_batch_size_per_gpu": 32}
    config["critic"] = {
        "model": {"path": config["actor_rollout_ref"]["model"]["path"]},
        "ppo_mini_batch_size": 8,
        "ppo_micro_batch_size_per_gpu": 32,
        "optim": {"lr": 1e-3},
    }
    steps = training.run()
    assert [step["step"] for step in steps] == list(range(1, 7))
    staleness = [step["training/off_policy/trajectory_staleness_worst/max"] for step in steps]
    # The share of a batch that started under the previous weights depends on timing.
    assert set(staleness) == {0, 1}, staleness
    # Rows sampled by the current weights agree almost exactly; older rows do not. A batch counts as
    # stale by its oldest start, although the weights may have changed before its first call.
    gaps = {0: [], 1: []}
    for step, stale in zip(steps, staleness, strict=True):
        gaps[stale].append(step["agl/logprob_gap_max"])
    assert max(gaps[0]) < 1e-4 < max(gaps[1]), gaps
    for step in steps:
        assert step["agl/rows"] == 2 * step["agl/rollouts"]  # two calls, two transitions
        assert step["agl/groups_partial"] == step["agl/rows_dropped"] == 0
        assert "critic/vf_loss" in step
        assert step["actor/kl_loss"] >= -1e-6
        assert 0 < step["rollout_corr/rollout_is_mean"] < 2
    assert (training.folder / "checkpoints" / "global_step_6" / "critic").is_dir()
    assert (training.folder / "checkpoints" / "global_step_6" / "transfer_queue").is_dir()


def test_rollouts_fork_and_calls_have_their_own_advantages(training: Training):
    credit = {"type": "forked", "forks": 2, "samples": 1, "choose": "entropy"}
    training.settings["options"]["credit"] = credit
    training.settings["config"]["trainer"].update(total_training_steps=3)
    steps = training.run()
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["agl/rollouts"] == 8 * 4
        assert 8 <= step["agl/forks"] <= 8 * 2
        assert step["agl/forks_dropped"] == step["agl/rows_dropped"] == 0
        members = step["agl/rollouts"] + step["agl/forks"]
        assert step["agl/rows"] == members + step["agl/rows_after_a_break"]
        assert step["agl/credit_spread"] > 0.01
        assert step["critic/advantages/min"] < 0 < step["critic/advantages/max"]
        assert step["actor/grad_norm"] > 0
        assert step["agl/logprob_gap_max"] < 1e-4


def test_agents_go_on_while_the_trainer_trains(training: Training):
    """Servers on separate devices: one step off-policy, with weights sent to them."""
    config = training.settings["config"]
    config["trainer"].update(
        total_training_steps=5,
        v1={
            "trainer_mode": "separate_async",
            "separate_async": {"parameter_sync_step": 1, "num_warmup_batches": 1},
        },
    )
    config["actor_rollout_ref"]["rollout"].update(nnodes=1, n_gpus_per_node=1)
    steps = training.run()
    assert [step["step"] for step in steps] == list(range(1, 6))
    newest = [step["training/off_policy/trajectory_staleness/max"] for step in steps]
    oldest = [step["training/off_policy/trajectory_staleness_worst/max"] for step in steps]
    assert max(newest) <= max(oldest) <= 2, (newest, oldest)
    assert max(oldest) >= 1, oldest
    assert all(step["agl/groups_partial"] == 0 for step in steps)
    # The first batch was sampled by the weights that it trains.
    assert steps[0]["agl/logprob_gap_max"] < 1e-4 < max(s["agl/logprob_gap_max"] for s in steps)
