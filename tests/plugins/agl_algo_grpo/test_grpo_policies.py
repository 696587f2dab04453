"""Several policies learn from one set of rollouts, each on its own calls."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
import signal
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from openai import APIError, OpenAI
from transformers import AutoModelForCausalLM

import agl_core as agl
from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo import GRPO, GRPOConfig, LoRAConfig
from agl_algo_grpo.samples import Decision, Learner, Reason, Step, decide
from agl_core.algorithm import RolloutOutcome
from agl_core.errors import ConfigError
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from tests.processes import running_below

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

TINY: dict[str, Any] = {
    "tasks_per_step": 2,
    "group_size": 4,
    "learning_rate": 1e-3,
    "max_tokens": 4,
    "server": {"type": "hf", "threads": 1},
    "threads": 1,
}


def ask(llm: agl.LLM, text: str) -> str:
    with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(model=llm.model, messages=messages)
    return answer.choices[0].message.content or ""


def score(text: str) -> float:
    """Return a number below 0.5 that differs from text to text."""
    return zlib.crc32(text.encode()) % 1000 / 2001


class Team(agl.LitAgent[int]):
    """The solver answers once, and the critic after every task but the first."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[int] = []
        self.numbers = itertools.count()

    def rollout(self, task: int, resources: Any, rollout: Any) -> None:
        self.servers.append(len(servers()))
        llms = {name: llm.with_attempted_rollout(rollout) for name, llm in resources.items()}
        solved = ask(llms["solver"], "Go.")
        rewards = {"solver": score(solved)}
        if task:
            rewards["critic"] = 1 - score(ask(llms["critic"], solved or "-"))
        agl.emit_reward(rewards, primary_key="solver")


def servers() -> list[psutil.Process]:
    return running_below("agl_server_hf.worker")


def train(
    folder: Path, policies: Mapping[str, Any], agent: Any, *, tasks: Sequence[int], **options: Any
) -> tuple[GRPO, dict[str, list[dict[str, str]]]]:
    algorithm = GRPO(policies, output_dir=str(folder), **{**TINY, **options})
    trainer = agl.Trainer(algorithm=algorithm, adapter="trajectory", strategy="shm", n_runners=4)
    trainer.fit(agent, list(tasks), val_dataset=list(tasks))
    rows: dict[str, list[dict[str, str]]] = {}
    for name in policies:
        with (folder / name / "metrics.csv").open(newline="") as file:
            rows[name] = list(csv.DictReader(file))
    return algorithm, rows


def assert_trained(rows: Sequence[Mapping[str, str]], steps: Sequence[int]) -> None:
    """Each step trained on tokens of the weights before it."""
    assert [int(row["step"]) for row in rows] == list(steps)
    for row in rows:
        assert float(row["logprob_delta"]) <= 1e-4
        assert row["version"] == f"step-{row['step']}"
        assert float(row["grad_norm"]) > 0


def test_two_policies_train_on_their_own_calls_and_rewards(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Each has a server of its own; one task in two does not call the critic."""
    folders = {"solver": models / "random", "critic": models / "wide"}
    policies = {
        "solver": {"model": folders["solver"], "reward": "solver"},
        "critic": {"model": folders["critic"], "reward": "critic", "learning_rate": 1e-2},
    }
    team = Team()
    caplog.set_level("INFO", logger="agl_core")
    algorithm, rows = train(tmp_path, policies, team, tasks=[0, 1], steps=2)
    assert re.search(r"GRPO: 2/2 solver: reward 0\.\d+, critic: reward [01]\.\d+", caplog.text)
    assert set(team.servers) == {2}
    assert servers() == []
    assert_trained(rows["solver"], [0, 1])
    assert_trained(rows["critic"], [0, 1])
    assert [row["rollouts"] for row in rows["solver"]] == ["8", "8"]
    assert [row["rollouts"] for row in rows["critic"]] == ["4", "4"]
    assert {row["dropped_rollouts"] for part in rows.values() for row in part} == {"0"}
    assert "drops" not in caplog.text
    assert [float(row["learning_rate"]) for row in rows["critic"]] == [1e-2, 1e-2]
    # The critic's rewards are above one half, the solver's below.
    assert all(0.5 < float(row["reward"]) <= 1 for row in rows["critic"])
    assert all(float(row["reward"]) < 0.5 for row in rows["solver"])
    assert 0 < float(rows["solver"][-1]["val_reward"]) < 0.5
    assert algorithm.metrics is algorithm.policies["solver"]
    for name, folder in folders.items():
        before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        after = AutoModelForCausalLM.from_pretrained(tmp_path / name / "model").state_dict()
        assert any(not torch.equal(before[key], after[key]) for key in before)
        assert (tmp_path / name / "curve.png").is_file()


def test_adapters_of_one_model_share_a_server_that_is_restarted_with_both(
    taught: Path, tmp_path: Path
):
    class Saboteur(Team):
        def rollout(self, task: int, resources: Any, rollout: Any) -> None:
            if next(self.numbers) == 10:  # in the second step
                (server,) = servers()
                server.send_signal(signal.SIGKILL)
            super().rollout(task, resources, rollout)

    lora = {"r": 4, "alpha": 8}
    policies = {name: {"model": taught, "reward": name} for name in ("solver", "critic")}
    team = Saboteur()
    _, rows = train(tmp_path, policies, team, tasks=[1, 2], steps=3, lora=lora, check_interval=0.5)
    assert max(team.servers) == 1
    assert servers() == []
    for part in rows.values():
        assert_trained(part, [0, 1, 2])
        assert [row["server_restarts"] for row in part] == ["0", "1", "0"]
        assert [row["rollouts"] for row in part] == ["8", "8", "8"]
    adapters = [tmp_path / name / "model" / "adapter_model.safetensors" for name in policies]
    assert adapters[0].read_bytes() != adapters[1].read_bytes()


def test_both_policies_resume_from_their_checkpoints(taught: Path, tmp_path: Path):
    folder = tmp_path / "first"
    options: dict[str, Any] = {"lora": {"r": 4}, "tasks": [1, 2], "checkpoint_every": 1}
    names = ("solver", "critic")
    train(folder, dict.fromkeys(names, taught), Team(), steps=1, **options)

    def resumed(**steps: int) -> dict[str, Any]:
        return {
            name: {"model": taught, "resume_from": folder / name / "checkpoints" / f"step-{step}"}
            for name, step in steps.items()
        }

    policies = resumed(solver=1, critic=1)
    _, rows = train(folder, policies, Team(), steps=2, **options)
    for part in rows.values():
        assert_trained(part, [0, 1])
    policies = resumed(solver=1, critic=2)
    with pytest.raises(ConfigError, match="different steps"):
        train(tmp_path / "second", policies, Team(), steps=3, **options)


# -- the decision on a rollout ---------------------------------------------------------------------


async def outcome_of(script: Sequence[Reply], *calls: str, **rewards: float) -> RolloutOutcome:
    """Return the outcome of an agent that calls these models one after another."""
    store = InMemoryLightningStore()
    with ScriptedModels(list(script), models=["a", "b", "fixed"]) as models:
        backends = [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": models.base_url},
            }
            for name in ("a", "b", "fixed")
        ]
        proxy = DirectProxy(store=store, model_list=backends, num_retries=0)
        await proxy.start()
        for name in ("a", "b"):
            proxy.set_model_version("step-3", name)
        started = await store.start_rollout(input="-")
        llm = proxy.as_resource(started.rollout_id, started.attempt.attempt_id, model="a")
        with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0) as client:
            for name in calls:
                # Calls of other models may be sampled otherwise.
                temperature = 0.3 if name == "fixed" else 1.0
                messages: Any = [{"role": "user", "content": "Hello"}]
                with contextlib.suppress(APIError):
                    client.chat.completions.create(
                        model=name, messages=messages, temperature=temperature
                    )
        await proxy.stop()
    spans = list((await store.query_spans(started.rollout_id)).items)
    rollout = await store.update_rollout(started.rollout_id, status="succeeded")
    if rewards:
        tracer = OtelTracer()
        with tracer.lifespan(store):
            attempt_id = started.attempt.attempt_id
            async with tracer.trace_context(
                "r", rollout_id=started.rollout_id, attempt_id=attempt_id
            ):
                agl.emit_reward(rewards, primary_key=next(iter(rewards)))
        spans = list((await store.query_spans(started.rollout_id)).items)
    return RolloutOutcome(rollout, next(iter(rewards.values()), 0.5), spans)


def decisions_on(outcome: RolloutOutcome, *, named: bool = False) -> dict[str, Decision]:
    learners = {
        name: Learner(GRPOConfig(model="m", reward=name if named else None), name)
        for name in ("a", "b")
    }
    return decide(outcome, TraceToTrajectory(), learners, {"step-3"})


GOOD = Reply("one two three")
BROKEN = Reply(error_status=500)


async def test_a_policy_is_trained_on_its_own_calls_only():
    script = [GOOD, Reply("four"), Reply("five six")]
    found = decisions_on(await outcome_of(script, "a", "b", "fixed"))
    tokens = {name: sum(map(sum, _masks(one))) for name, one in found.items()}
    assert tokens == {"a": 3, "b": 1}
    assert {one.reason for one in found.values()} == {""}


def _masks(decision: Decision) -> list[list[int]]:
    assert decision.sample is not None
    return [row.mask for row in decision.sample.rows]


async def test_a_policy_that_was_not_called_is_absent():
    found = decisions_on(await outcome_of([GOOD], "a"))
    assert found["a"].sample is not None
    assert (found["b"].sample, found["b"].reason) == (None, Reason.NOT_CALLED)
    assert (found["b"].is_absent, found["b"].failed) == (True, False)
    config = GRPOConfig(model="m", group_size=3)
    step = Step.of([[found["a"], found["b"], found["a"]], [found["b"]] * 3], config)
    assert [len(group.samples) for group in step.groups] == [2]
    assert (step.partial, step.dropped_groups, dict(step.dropped)) == (0, 0, {})
    # A rollout that called none of them is unusable for all, and repeated.
    found = decisions_on(await outcome_of([GOOD], "fixed"))
    assert {one.reason for one in found.values()} == {Reason.NO_TOKENS}
    assert {one.failed for one in found.values()} == {True}


async def test_a_broken_call_of_one_policy_spoils_the_rollout_of_all():
    found = decisions_on(await outcome_of([GOOD, BROKEN], "a", "b"))
    assert {one.reason for one in found.values()} == {Reason.BROKEN_CALL}
    found = decisions_on(await outcome_of([GOOD, GOOD, BROKEN], "a", "b", "fixed"))
    assert {one.reason for one in found.values()} == {""}


async def test_each_policy_has_its_own_number_of_the_reward():
    outcome = await outcome_of([GOOD, GOOD], "a", "b", a=0.25, b=0.75)
    samples = [one.sample for one in decisions_on(outcome, named=True).values()]
    assert [sample.reward for sample in samples if sample] == [0.25, 0.75]
    shared = [one.sample for one in decisions_on(outcome).values()]
    assert [sample.reward for sample in shared if sample] == [0.25, 0.25]
    missing = decisions_on(await outcome_of([GOOD, GOOD], "a", "b", a=0.25), named=True)["b"]
    assert (missing.sample, missing.reason, missing.failed) == (None, "no reward 'b'", True)


# -- options ---------------------------------------------------------------------------------------


def test_a_policys_options_are_those_of_grpo_unless_it_sets_them():
    config = GRPOConfig(
        model={"a": "x", "b": {"model": "y", "kl": 0.5, "lora": None}}, kl=0.1, lora=LoRAConfig(r=4)
    )
    a, b = config.policies().values()
    assert (a.model, a.kl, a.resource) == ("x", 0.1, "a")
    assert a.lora is not None
    assert (b.model, b.kl, b.lora, b.resource) == ("y", 0.5, None, "b")
    single = GRPOConfig(model="x", resource="llm")
    assert single.policies() == {"llm": single}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {}, "there are no policies"),
        ({"a": {"model": "x", "steps": 3}}, {}, r"a\.steps: Extra inputs"),
        ({"a": {"kl": 0.1}}, {}, r"a\.model: Field required"),
        ({"a/b": "x"}, {}, "letters, digits"),
        ({"a": "x"}, {"resume_from": "y"}, "an option of each policy"),
        ({"a": {"model": "x", "temperature": 0.5}}, {"overlap": 1}, "overlap needs"),
    ],
)
def test_wrong_options_of_policies_are_refused(
    model: dict[str, Any], options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message) as caught:
        GRPO(model, **options)
    assert "\n" not in str(caught.value)
