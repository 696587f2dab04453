"""Credit by turn: from samples to the advantages of tokens, and forks in a training run."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI
from pydantic import ValidationError

import agl_core as agl
from agl_adapter_trajectory import Certificate, TrajectoryRow
from agl_algo_grpo import GRPO, CreditConfig, GRPOConfig
from agl_algo_grpo.credit import to_paths, token_advantages
from agl_algo_grpo.grpo import group_advantages
from agl_algo_grpo.samples import FAILURE, Decision, Group, Reason, Sample, Step
from agl_algo_grpo.training import to_rows
from agl_core import semconv
from agl_core.types import Rollout, Span
from agl_store_memory import InMemoryLightningStore


def row(text: str, agent: str = "*") -> TrajectoryRow:
    """Return a row of one token per character; the model sampled the capital letters."""
    made = TrajectoryRow(
        agent=agent,
        token_ids=[ord(letter) for letter in text],
        mask=[int(letter.isupper()) for letter in text],
        logprobs=[-1.0 if letter.isupper() else 0.0 for letter in text],
        certificate=Certificate(model_versions=["step-0"]),
    )
    for place, letter in enumerate(text):
        if letter.isupper() and not text[place - 1].isupper():
            made.responses.append((place, place))
        if letter.isupper():
            made.responses[-1] = (made.responses[-1][0], place + 1)
    made.rewards = [None] * len(made.responses)
    made.span_ids = [f"{text}-{number}" for number in range(len(made.responses))]
    return made


def sample(name: str, reward: float, text: str, **more: Any) -> Sample:
    rows = [row(part) for part in text.split()]
    calls = [(i, number) for i, part in enumerate(rows) for number in range(len(part.responses))]
    return Sample(name, reward, rows, calls=calls, **more)


def config(credit: Any, **options: Any) -> GRPOConfig:
    return GRPOConfig(model="m", credit=credit, advantage="group-mean", **options)


def shown(group: Group, options: GRPOConfig) -> list[list[list[float]]]:
    return [[part.tolist() for part in rows] for rows in token_advantages(group, options)]


def test_the_default_rows_are_those_of_the_group_baseline_bit_by_bit():
    rewards = [0.1, 0.7, 0.3, 1.0, 1.0, 0.2]
    samples = [sample(str(i), reward, "aBcD eF") for i, reward in enumerate(rewards)]
    groups = [Group(0, samples[:3]), Group(1, samples[3:])]
    rows = to_rows(Step(groups=groups), GRPOConfig(model="m"))
    expected = group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    ).tolist()
    assert len(rows) == 12
    for made, advantage in zip(rows, [a for a in expected for _ in range(2)], strict=True):
        assert torch.equal(made.advantages, torch.full((len(made.token_ids),), advantage))


def test_the_group_advantage_by_turn_is_that_of_the_default():
    samples = [sample(str(i), reward, "aBcD") for i, reward in enumerate([0.1, 0.7, 0.3])]
    step = Step(groups=[Group(0, samples)])
    by_turn = token_advantages(step.groups[0], GRPOConfig(model="m"))
    for made, (of_row,) in zip(to_rows(step, GRPOConfig(model="m")), by_turn, strict=True):
        assert made.advantages[made.mask].numpy() == pytest.approx(of_row[made.mask.numpy()])


def test_tokens_have_the_advantage_of_their_call():
    # The second rollout answers the first prompt alike, and fails after the second one.
    group = Group(0, [sample("x", 1, "aBBcDe"), sample("y", 0, "aBBcE"), sample("z", 1, "aFcD")])
    found = shown(group, config("rtmc"))
    assert found == [
        [[0, 0.0, 0.0, 0, 1.0, 0]],
        [[0, -0.5, -0.5, 0, -1.0]],
        [[0, 0.5, 0, 0.5]],
    ]


def test_calls_of_several_rows_are_ordered_by_time():
    rows = [row("aBcD", "solver"), row("xY", "critic")]
    made = Sample("r", 1.0, rows, calls=[(0, 0), (1, 0), (0, 1)])
    (path,) = to_paths([made])
    assert [turn.agent for turn in path.turns] == ["solver", "critic", "solver"]
    assert [turn.surprisal for turn in path.turns] == [1.0, 1.0, 1.0]
    discounted = shown(
        Group(0, [made, Sample("s", 0.0, [row("aBcD"), row("xY")], calls=made.calls)]),
        config({"type": "discounted", "discount": 0.5}),
    )
    assert discounted[0] == [[0, 0.125, 0, 0.5], [0, 0.25]]


def test_agents_have_their_own_rewards():
    def pair(name: str, rewards: dict[str, float]) -> Sample:
        rows = [row("aB", "solver"), row("xY", "critic")]
        return Sample(name, 0.0, rows, calls=[(0, 0), (1, 0)], rewards=rewards)

    group = Group(0, [pair("x", {"solver": 1, "critic": 0}), pair("y", {"solver": 0, "critic": 1})])
    found = shown(group, config("agents"))
    assert found == [[[0, 0.5], [0, -0.5]], [[0, -0.5], [0, 0.5]]]


def test_tokens_of_a_fork_are_compared_with_those_of_its_parent():
    parent, other = sample("x", 1, "aBcD"), sample("y", 0, "aCcC")
    fork = Sample("f", 0.0, [row("abcE")], calls=[(0, 0)], parent="x", repeated=1)
    group = Group(0, [parent, other], forks=[fork])
    assert shown(group, config("forked")) == [
        [[0, 0.5, 0, 0.5]],
        [[0, -0.5, 0, -0.5]],
        [[0, 0, 0, -0.5]],
    ]


def test_a_step_trains_on_forks_of_usable_rollouts_only():
    good = Decision(sample("x", 1, "aB"), rows=1, tokens=1)
    bad = Decision(None, "no reward", rows=1, tokens=5)
    fork = Sample("f", 0.0, [row("aC")], calls=[(0, 0)], parent="x")
    orphan = Sample("g", 0.0, [row("aC")], calls=[(0, 0)], parent="gone")
    branches = [Decision(fork, tokens=1), Decision(orphan, tokens=1), bad]
    options = config("forked", group_size=2)
    step = Step.of([[good, good]], options, {0: branches})
    assert [one.rollout_id for one in step.samples] == ["x", "x", "f"]
    assert (step.rewards, step.sampled_tokens) == ([1, 1], 9)
    assert step.dropped == {"no reward": 1}


def test_a_fork_that_repeats_all_calls_of_its_policy_is_left_out():
    """Of a solver and a critic the fork may go on with calls that the parent has none of."""
    parent, other = sample("x", 1, "aB"), sample("y", 0, "aC")
    late = Sample("f", 0.0, [row("abD")], calls=[(0, 0)], parent="x", repeated=1)
    options = config("forked", group_size=2)
    decided = [Decision(one, rows=1, tokens=1) for one in (parent, other)]
    step = Step.of([decided], options, {0: [Decision(late, rows=1, tokens=1)]})
    assert [one.rollout_id for one in step.samples] == ["x", "y"]
    assert step.dropped == {Reason.PAST_PARENT: 1}
    assert step.groups[0].teaches(options)


@pytest.mark.parametrize("scale", [1, 100])
def test_a_failure_is_the_worst_for_every_agent(scale: float):
    """Whatever numbers it emitted before, and whatever scale an agent's numbers have."""

    def pair(name: str, reward: float, rewards: dict[str, float]) -> Decision:
        rows = [row("aB", "solver"), row("xY", "critic")]
        made = Sample(name, reward, rows, calls=[(0, 0), (1, 0)], rewards=rewards)
        return Decision(made, rows=2)

    decided = [
        pair("x", 0.0, {"solver": 0.0, "critic": 3 * scale}),
        pair("y", 0.5, {"solver": 0.5, "critic": 2 * scale}),
        pair("z", FAILURE, {}),
    ]
    options = config("agents", group_size=3)
    (group,) = Step.of([decided], options).groups
    for of_agent in zip(
        *([float(a[-1]) for a in rows] for rows in token_advantages(group, options)), strict=True
    ):
        assert of_agent[2] < min(of_agent[:2])


def test_forks_need_a_loss_that_weighs_tokens():
    with pytest.raises(ValidationError, match="needs loss='token' or 'constant'"):
        config("forked", loss="rollout")


@pytest.mark.parametrize(
    ("credit", "options", "said"),
    [
        ("rtmc", {"advantage": "rloo"}, "advantage='rloo' needs credit='group', not 'rtmc'"),
        ("forked", {"seed": -1}, "credit='forked' needs a seed of at least 0"),
    ],
)
def test_options_that_credit_by_turn_cannot_follow_are_refused(
    credit: Any, options: dict[str, Any], said: str
):
    with pytest.raises(ValidationError, match=said):
        GRPOConfig(model="m", credit=credit, **options)


# -- a training run --------------------------------------------------------------------------------


@agl.rollout
def talk(task: int, llm: agl.LLM) -> float:
    """Call the model three times; the reward grows with the number of distinct characters."""
    messages: Any = [{"role": "user", "content": "Go."}]
    text = ""
    with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
        for _ in range(3):
            answer = client.chat.completions.create(model=llm.model, messages=messages)
            text += answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    return len(set(text)) / 10


def test_rollouts_fork_and_every_branch_trains(taught: Path, tmp_path: Path):
    store = InMemoryLightningStore()
    algorithm = GRPO(
        model=taught,
        steps=2,
        tasks_per_step=2,
        group_size=2,
        credit=CreditConfig(type="forked", forks=2, samples=2, choose="uniform"),
        learning_rate=1e-3,
        max_tokens=6,
        threads=1,
        server={"type": "hf", "threads": 1},
        output_dir=str(tmp_path),
        on_mismatch="raise",
    )
    trainer = agl.Trainer(
        algorithm=algorithm, adapter="trajectory", strategy="shm", n_runners=2, store=store
    )
    trainer.fit(talk, [1, 2, 3])
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    calls_of = asyncio.run(_calls_by_rollout(store))
    rollouts = [rollout for rollout, _ in calls_of]
    forks = [one for one in rollouts if one.config.replay is not None]
    assert {one.status for one in rollouts} == {"succeeded"}
    assert len(rollouts) - len(forks) == 2 * 2 * 2
    assert len(forks) == sum(int(row["forks"]) for row in rows) > 0
    live, repeated = 0, 0
    for one, calls in calls_of:
        assert len(calls) == 3
        for call in calls:
            ids: Any = call.attributes["response_token_ids"]
            if semconv.REPLAYED_CALL in call.attributes:
                repeated += len(ids)
            else:
                live += len(ids)
        assert _until(one) == sum(semconv.REPLAYED_CALL in call.attributes for call in calls)
    assert live == sum(int(row["sampled_tokens"]) for row in rows)
    assert repeated > 0
    assert all(int(row["rollouts"]) == 4 + int(row["forks"]) for row in rows)
    assert any(float(row["grad_norm"]) > 0 for row in rows)


async def _calls_by_rollout(store: InMemoryLightningStore) -> list[tuple[Rollout, list[Span]]]:
    found: list[tuple[Rollout, list[Span]]] = []
    for one in await store.query_rollouts():
        spans = await store.query_spans(one.rollout_id)
        found.append((one, [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]))
    return found


def _until(rollout: Rollout) -> int:
    return (rollout.config.replay.until or 0) if rollout.config.replay else 0
