"""Rows that begin alike: their beginning is computed once, with the values of separate rows."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from agl_algo_grpo.batches import Row, collate, plan
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.head import Head
from agl_algo_grpo.policy import Policy
from agl_algo_grpo.prefixes import balance, divide, merge
from agl_algo_grpo.update import _add_gradients

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

_spec = importlib.util.spec_from_file_location(
    "tiny_causal", Path(__file__).with_name("tiny_causal.py")
)
assert _spec is not None
assert _spec.loader is not None
tiny: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)


def history(turns: int, *, tool_loop: bool, words: int = 90, scale: int = 1) -> list[Row]:
    """Return the rows of an agent that drops 60 of every 100 sampled tokens from its history.

    Each turn has a message of 21 tokens and an answer of 100, all divided by ``scale``. With tools
    the first message has 429 tokens, and each result has 23.
    """
    rng = random.Random(0)
    prompt: list[int] = []
    rows: list[Row] = []
    for turn in range(turns):
        length = (21 if not tool_loop else 23 if turn else 429) // scale
        prompt = prompt + [rng.randrange(3, words) for _ in range(length)]
        answer = [rng.randrange(3, words) for _ in range(100 // scale)]
        ids = prompt + answer
        mask = torch.tensor([False] * len(prompt) + [True] * len(answer))
        logprobs = torch.tensor([-4.5 + 0.2 * rng.gauss(0, 1) for _ in ids]) * mask
        advantages = torch.full((len(ids),), rng.choice([-1.0, 1.0]))
        rows.append(Row(torch.tensor(ids), mask, logprobs, advantages, rollout=0))
        prompt = prompt + answer[60 // scale :]
    return rows


def sees(row: Tensor) -> list[tuple[int, ...]]:
    """Return for each token what it sees: itself and what comes before it."""
    return [tuple(row[: i + 1].tolist()) for i in range(len(row))]


ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8)


@given(ROWS)
def test_each_token_of_a_tree_sees_the_tokens_before_it_in_its_row(drawn: list[list[int]]):
    rows = [torch.tensor(row) for row in sorted(drawn)]
    tree = merge(rows)
    order = torch.arange(len(tree.token_ids))
    seen = (order <= order[:, None]) & (order[:, None] < tree.until)
    for row, places in zip(rows, tree.places, strict=True):
        assert torch.equal(tree.token_ids[places], row)
        assert torch.equal(tree.positions[places], torch.arange(len(row)))
        found = [tuple(tree.token_ids[seen[place]].tolist()) for place in places]
        assert found == sees(row)
    # No beginning is there twice.
    assert len(tree.token_ids) == len({one for row in rows for one in sees(row)})


@given(ROWS, st.integers(1, 20), st.sampled_from([0.0, 3.0, 1000.0]))
def test_every_row_is_divided_once_and_trees_are_within_the_limit_and_cheaper(
    drawn: list[list[int]], most: int, balanced: float
):
    rows = [torch.tensor(row) for row in drawn]
    separate, trees = divide(rows, most, balanced)
    assert sorted([*separate, *(i for tree in trees for i in tree)]) == list(range(len(rows)))
    for tree in trees:
        size = len(merge([rows[i] for i in tree]).token_ids)
        assert size <= most
        alone = sum(len(rows[i]) * (balanced + len(rows[i]) / 2) for i in tree)
        assert size * (balanced + size) <= 0.75 * alone


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(4, 40),
    st.sampled_from([0.0, 2.0, 10.0, 100.0]),
)
def test_no_other_division_of_sorted_rows_costs_less(
    drawn: list[list[int]], most: int, balanced: float
):
    def cost(part: list[list[int]]) -> float:
        size = len(part[0])
        if len(part) == 1:
            return size * (balanced + size / 2)
        size = len({tuple(row[:end]) for row in part for end in range(1, len(row) + 1)})
        return size * (balanced + size) / 0.75 if size <= most else math.inf

    def least(rest: list[list[int]]) -> float:
        ends = range(1, len(rest) + 1)
        return min((cost(rest[:end]) + least(rest[end:]) for end in ends), default=0.0)

    separate, trees = divide([torch.tensor(row) for row in drawn], most, balanced)
    found = sum(cost([drawn[i] for i in part]) for part in [*trees, *([i] for i in separate)])
    assert found == pytest.approx(least(sorted(drawn)))


def group(prompt: int, answer: int, rollouts: int, *, task: int = 0) -> list[Row]:
    """Return the rows of a group: so many answers to one prompt."""
    rng = random.Random(task)
    asked = [rng.randrange(3, 90) for _ in range(prompt)]
    mask = torch.tensor([False] * prompt + [True] * answer)
    rows: list[Row] = []
    for rollout in range(rollouts):
        ids = asked + [rng.randrange(3, 90) for _ in range(answer)]
        logprobs = torch.tensor([-4.5 + 0.2 * rng.gauss(0, 1) for _ in ids]) * mask
        advantages = torch.full((len(ids),), 1.0 if rollout % 2 else -1.0)
        number = task * rollouts + rollout
        rows.append(Row(torch.tensor(ids), mask, logprobs, advantages, rollout=number))
    return rows


@pytest.mark.parametrize(
    ("prompt", "answer", "balanced", "trees"),
    [
        (1024, 256, 12_800, [8]),  # the attention is a small part
        (256, 64, 1665, [8]),
        (256, 256, 1665, []),  # what is saved is less than the attention between the answers
        (1024, 1024, 4000, []),
        (64, 64, 100_000, [8]),
        (8, 256, 100_000, []),  # there is little to share
    ],
)
def test_a_group_shares_its_prompt_where_that_costs_less(
    prompt: int, answer: int, balanced: float, trees: list[int]
):
    rows = [row.token_ids for row in group(prompt, answer, 8)]
    _, found = divide(rows, 16_384, balanced)
    assert [len(tree) for tree in found] == trees


def test_long_answers_share_their_prompt_in_several_trees():
    rows = [row.token_ids for row in group(1024, 512, 16)]
    separate, trees = divide(rows, 16_384, 4000)
    assert not separate
    assert [len(tree) for tree in trees] == [4, 4, 4, 4]


def test_groups_with_one_system_prompt_share_it():
    said = torch.arange(3, 83).repeat(8)
    rows = [
        torch.cat([said, row.token_ids]) for task in range(4) for row in group(8, 16, 4, task=task)
    ]
    separate, (tree,) = divide(rows, 16_384, 12_800)
    assert not separate
    assert len(merge([rows[i] for i in tree]).token_ids) == 640 + 4 * 8 + 16 * 16


def test_the_balance_follows_from_the_shape():
    model = tiny.make_causal("qwen2")
    config = model.config
    weights = sum(p.numel() for p in model.model.layers.parameters())
    weights += model.model.norm.weight.numel()
    units = config.hidden_size // config.num_attention_heads
    compared = 2 * config.num_hidden_layers * config.num_attention_heads * units
    assert balance(model) == pytest.approx(weights / compared)


@pytest.mark.parametrize(("tool_loop", "least"), [(False, 4.0), (True, 4.0)])
def test_histories_that_drop_reasoning_compute_far_fewer_tokens(tool_loop: bool, least: float):
    rows = history(20, tool_loop=tool_loop)
    apart = sum(len(row.token_ids) for row in rows)
    large = 12_800  # the balance of a model of 1B parameters
    tokens = sum(one.tokens for one in plan(rows, 16_384, balance=large))
    print(f"tool loop {tool_loop}: {apart} tokens in separate rows, {tokens} with trees")
    assert apart / tokens >= least
    # With a small limit there are more trees, which share less.
    smaller = plan(rows, 2000, balance=large)
    assert all(each.tokens <= 2000 or len(each.bins) == 1 for each in smaller)
    assert tokens < sum(each.tokens for each in smaller) < apart


def make_policy(folder: Path, name: str, **options: Any) -> tuple[Policy, GRPOConfig]:
    model = folder / name
    if not model.exists():
        tiny.make_causal(name, model)
    config = GRPOConfig(model=model, threads=1, **options)
    return Policy(config, model), config


def gradients(policy: Policy, rows: list[Row], config: GRPOConfig) -> tuple[int, list[Tensor]]:
    sums = _add_gradients(policy, rows, config)
    found = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    return sums.tokens, found


@pytest.fixture
def as_in_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trees be as worthwhile as in a model of 1B parameters."""
    monkeypatch.setattr("agl_algo_grpo.policy.balance", lambda model: 12_800.0)


LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": "rollout", "ratio": "sequence", "clip_low": 0.02, "clip_high": 0.02},
    {"loss": "constant", "clip_dual": 3.0, "temperature": 0.8},
    {"micro_batch_tokens": 300, "pack": True},
    {"lora": {"r": 4}},
    {"gradient_checkpointing": True, "chunk_tokens": 7},
]


@pytest.mark.usefixtures("as_in_large_models")
@pytest.mark.parametrize("options", LOSSES)
def test_gradients_and_values_of_a_tree_equal_those_of_separate_rows(
    tmp_path: Path, options: dict[str, Any]
):
    # Two rollouts of different lengths, so that one tree is padded; and one of a single row.
    rows = history(6, tool_loop=False, scale=5) + [
        Row(r.token_ids, r.mask, r.logprobs, r.advantages, rollout=1)
        for r in history(4, tool_loop=True, scale=5)
    ]
    last = history(1, tool_loop=True, scale=2)[0]
    rows.append(Row(last.token_ids, last.mask, last.logprobs, last.advantages, rollout=2))
    apart, config = make_policy(tmp_path, "qwen2", share_prefixes=False, **options)
    shared, sharing = make_policy(tmp_path, "qwen2", **options)
    if "lora" in options:
        with torch.no_grad():
            for one in (apart, shared):
                torch.manual_seed(3)
                for parameter in one._trained:  # PEFT starts with 0, which has no effect
                    parameter.normal_(0, 0.1)
    for mine, theirs in zip(shared.evaluate(rows), apart.evaluate(rows), strict=True):
        torch.testing.assert_close(mine.raw, theirs.raw, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine.entropy, theirs.entropy, atol=1e-5, rtol=1e-5)
    most, expected = gradients(apart, rows, config)
    fewest, found = gradients(shared, rows, sharing)
    assert fewest < most / 1.5
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("as_in_large_models")
@pytest.mark.parametrize("tool_loop", [False, True])
def test_gradients_of_20_turns_equal_those_of_separate_rows(tmp_path: Path, tool_loop: bool):
    rows = history(20, tool_loop=tool_loop)
    apart, config = make_policy(tmp_path, "qwen2", share_prefixes=False)
    shared, sharing = make_policy(tmp_path, "qwen2")
    most, expected = gradients(apart, rows, config)
    fewest, found = gradients(shared, rows, sharing)
    assert fewest <= most / 2
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("as_in_large_models")
def test_gradients_of_groups_equal_those_of_separate_rows(tmp_path: Path):
    rows = [row for task in range(3) for row in group(40, 12, 4, task=task)]
    apart, config = make_policy(tmp_path, "qwen2", share_prefixes=False)
    shared, sharing = make_policy(tmp_path, "qwen2")
    for mine, theirs in zip(shared.evaluate(rows), apart.evaluate(rows), strict=True):
        torch.testing.assert_close(mine.raw, theirs.raw, atol=1e-5, rtol=1e-5)
    most, expected = gradients(apart, rows, config)
    fewest, found = gradients(shared, rows, sharing)
    assert (most, fewest) == (12 * 52, 3 * (40 + 4 * 12))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["qwen2", "cohere", "phi", "gpt2"])
def test_both_attentions_of_transformers_take_the_mask(name: str, attention: str):
    model = tiny.make_causal(name)
    model.set_attn_implementation(attention)
    head = Head(model, torch.float32)
    assert head.cannot_share(8192) == ""
    rows = history(4, tool_loop=False, scale=5)
    tree, alone = (
        collate(rows, bins, shared=shared)
        for bins, shared in (([[0, 1, 2, 3]], True), ([[0], [1], [2], [3]], False))
    )
    assert tree.token_ids.numel() < alone.token_ids.numel()
    with torch.no_grad():
        mine, theirs = (
            head.hidden_states(batch.inputs).flatten(0, 1)[batch.sources] for batch in (tree, alone)
        )
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mistral", {"sliding_window": 64}, "window of 64 tokens"),
        ("gemma2", {"sliding_window": 64}, "window of 64 tokens"),
        ("mamba", {"state_size": 4}, "layers with a state"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "Bloom"),
    ],
)
def test_models_that_cannot_share_prefixes_compute_separate_rows_and_say_so_once(
    tmp_path: Path,
    models: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    options: dict[str, Any],
    reason: str,
):
    tiny.make_causal(name, tmp_path / name, **options)
    policy = Policy(GRPOConfig(model=tmp_path / name), tmp_path / name)
    rows = history(4, tool_loop=False, scale=5)
    for _ in range(2):
        policy.evaluate(rows)
    said = [text for text in caplog.messages if "computed separately" in text]
    assert len(said) == 1
    assert reason in said[0]
    assert not any(one.shared for one in policy.micro_batches.run(rows, list))


def blank(lengths: list[int]) -> list[Row]:
    """Return rows of these lengths that share nothing."""
    return [
        Row(torch.arange(n) + 1000 * i, torch.ones(n) > 0, torch.zeros(n), torch.zeros(n), i)
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("lengths", "passes"),
    [
        ([10] * 20 + [100] * 5, [[10] * 20 + [100] * 5]),  # too few tokens for two
        ([10] * 300 + [100] * 30, [[10] * 300, [100] * 30]),
        ([90] * 30 + [100] * 30, [[90] * 30 + [100] * 30]),  # they are alike
        ([100] * 200, [[100] * 163, [100] * 37]),
    ],
)
def test_rows_that_differ_in_length_are_not_padded_to_the_longest_of_all(
    lengths: list[int], passes: list[list[int]]
):
    rows = blank(lengths)
    found = [[len(rows[i].token_ids) for (i,) in one.bins] for one in plan(rows, 16_384)]
    assert found == passes


def test_small_trees_take_the_place_of_padding():
    rows = group(100, 100, 3)  # a tree of 400 tokens
    for task in (1, 2, 3):
        rows += group(100, 10, 2, task=task)  # of 120
    (one,) = plan(rows, 16_384, balance=12_800)
    assert one.tokens == 2 * 400
    assert collate(rows, one.bins, shared=True).token_ids.shape == (2, 400)
