"""Runs in which rollouts fail: exit code, cause, one traceback, summary and JSON."""

from __future__ import annotations

import json

import pytest

from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore
from agl_train.failures import Failures, failed_rollouts, retried_attempts

FAILING = """

@agl.rollout
def forgets(task, prompt_template):
    if task == "ok":
        return 1.0
    if task == "value":
        raise ValueError("no\\nvalue")
    return {}["prompt"]
"""
RAISING = """
from agl_algorithm_kit import run_batch
from agl_core.errors import RunFailedError

@agl.algo
async def raising(*, store, train_dataset, val_dataset, initial_resources):
    await run_batch(store, train_dataset, resources=initial_resources)
    raise RunFailedError("got no usable prompt")
"""


STUMBLING = """
from agl_algorithm_kit import run_batch

@agl.algo
async def stumbling(*, store, train_dataset, val_dataset, initial_resources):
    batch = await run_batch(store, train_dataset, resources=initial_resources)
    best = [one for one in batch if one.reward is not None]
    await store.add_resources({"prompt_template": best[0]})
"""


@pytest.fixture
def forgets(project):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(FAILING)
    (project / "val.jsonl").write_text('"x"')
    return ["--set", "agent=agl_cli_agent:forgets"]


def with_tasks(*tasks):
    return [
        "--set",
        f"train_dataset={json.dumps(tasks)}",
        "--set",
        f"val_dataset={json.dumps(tasks)}",
    ]


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_run_in_which_all_fail_exits_with_the_common_cause(
    project, forgets, agl, command, strategy
):
    tasks = with_tasks(*["x"] * (5 if command == "train" else 10))
    options = ["--set", f"strategy={strategy}", "--set", "trainer.n_runners=3"]
    done = agl(command, "train.toml", *forgets, *tasks, *options, AGL_SERVER_PORT="0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "agl: error: 10 of 10 failed: KeyError 'prompt'"
    assert done.stderr.count("Traceback") == 1
    assert "KeyError 'prompt': the log has one traceback, 9 more like it" in done.stderr
    # The traceback begins in the agent.
    assert (
        done.stderr.partition("Traceback")[2]
        .splitlines()[1]
        .strip()
        .startswith(f'File "{project}/agl_cli_agent.py"')
    )


def test_json_of_a_run_in_which_all_fail(forgets, agl):
    done = agl("train", "train.toml", *forgets, *with_tasks("x"), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["status"]) == (1, "failed")
    assert said["failures"] == [{"cause": "KeyError 'prompt'", "rollouts": 2}]


def test_what_an_algorithm_raises_fails_a_run_whose_rollouts_succeeded(project, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(RAISING)
    options = ["--set", "algorithm=agl_cli_agent:raising", "--set", "test_dataset=['fresh']"]
    done = agl("train", "train.toml", *options)
    assert done.returncode == 1
    assert "status" in done.stdout
    assert "Test on" not in done.stdout
    assert "score it" not in done.stdout
    assert done.stderr.splitlines()[-1] == "agl: error: got no usable prompt"
    done = agl("train", "train.toml", *options, "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["status"], said["test"]) == (1, "failed", None)
    assert said["error"] == {"type": "RunFailedError", "message": "got no usable prompt"}
    assert said["metrics"]["succeeded"] == 2


def test_an_algorithm_that_stumbles_over_failures_hides_no_cause(project, forgets, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(STUMBLING)
    options = [*forgets, *with_tasks("x", "x"), "--set", "algorithm=agl_cli_agent:stumbling"]
    done = agl("train", "train.toml", *options)
    assert done.returncode == 1
    *_, cause, error = done.stderr.splitlines()
    assert cause == "2 of 2 failed: KeyError 'prompt'"
    assert error.startswith("agl: error: IndexError")


@pytest.mark.parametrize("command", ["train", "eval"])
def test_partial_failure_is_in_the_summary(forgets, agl, command):
    tasks = with_tasks("x", "ok", "value", "x")
    done = agl(command, "train.toml", *forgets, *tasks)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    n = 2 if command == "train" else 1
    at = lines.index(f"failed {3 * n}")
    assert lines[at + 1] == f"because of KeyError 'prompt' ({2 * n})"
    assert lines[at + 2] == f"because of ValueError no value ({n})"
    done = agl(command, "train.toml", *forgets, *tasks, "--json")
    said = json.loads(done.stdout)
    assert said["status"] == "succeeded"
    assert [one["rollouts"] for one in said["failures"]] == [2 * n, n]


@pytest.mark.parametrize(
    ("statuses", "causes", "verdict"),
    [
        ({}, {}, ""),
        ({"rollouts": 3}, {}, ""),  # enqueued, and no call waited
        ({"succeeded": 1, "failed": 29}, {"x": 29}, ""),
        ({"failed": 30}, {"KeyError 'prompt'": 30}, "30 of 30 failed: KeyError 'prompt'"),
        ({"failed": 3}, {"a": 1, "b": 2}, "3 of 3 failed: 2 times b, and 1 other cause"),
        ({"failed": 1, "cancelled": 2}, {"a": 1}, "0 of 3 succeeded (1 failed, 2 cancelled): a"),
        ({"cancelled": 2}, {}, "0 of 2 succeeded (0 failed, 2 cancelled)"),
    ],
)
def test_verdicts(statuses, causes, verdict):
    assert Failures(statuses, causes).verdict == verdict


async def test_attempts_that_later_ones_replaced_are_counted_by_status():
    store = InMemoryLightningStore()
    config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
    rollout = await store.enqueue_rollout("x", config=config)
    for status in ("failed", "failed", "succeeded"):
        assert await store.dequeue_rollout("w") is not None
        await store.update_attempt(rollout.rollout_id, "latest", status=status)
    await store.start_rollout("y")
    assert await retried_attempts(store, 2) == {"failed": 2}
    assert await retried_attempts(store, 0) == {}


async def test_failures_and_retries_of_other_runs_are_left_out():
    store = InMemoryLightningStore()
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    expected: list[str] = []
    for run in ("night", None, "day"):  # the last one is the newest
        metadata = None if run is None else {"run": run, "batch": "b", "index": 0}
        rollout = await store.enqueue_rollout("x", config=config, metadata=metadata)
        for _ in range(2):
            assert await store.dequeue_rollout("w") is not None
            await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        expected += [] if run == "day" else [rollout.rollout_id]
    found = await failed_rollouts(store, 2, {"night", None})
    assert [one.rollout_id for one in found] == expected[::-1]
    assert [one.rollout_id for one in await failed_rollouts(store, 2, {"night"})] == expected[:1]
    assert await retried_attempts(store, 9, {"night", None}) == {"failed": 2}
    assert await retried_attempts(store, 9) == {"failed": 3}
    assert len(await failed_rollouts(store, 1)) == 1
    assert await failed_rollouts(store, 0, {"night"}) == []


def test_the_cause_of_a_resumed_run_is_its_own(project, forgets, agl):
    """Its only failure is older than one of another run in the same store."""
    tasks = with_tasks("value", "ok")
    assert agl("train", "train.toml", *forgets, *tasks, "--run", "night").returncode == 0
    other = agl("train", "train.toml", *forgets, *with_tasks("x", "ok"), "--run", "day")
    assert other.returncode == 0
    done = agl("train", "train.toml", *forgets, *tasks, "--run", "night", "--resume", "--json")
    assert [one["cause"] for one in json.loads(done.stdout)["failures"]] == ["ValueError no value"]


async def test_no_rollout_is_read_where_none_failed():
    class Unread(InMemoryLightningStore):
        async def query_rollouts(self, **filters):
            raise AssertionError(filters)

    assert await failed_rollouts(Unread(), 0) == []
    assert await retried_attempts(Unread(), 0) == {}
