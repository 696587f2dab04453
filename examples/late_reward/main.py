"""Compares forked credit with GRPO, in sampled tokens until both reach the same reward.

python examples/late_reward/main.py                               # three tasks, three seeds
python examples/late_reward/main.py --decisive last --seeds 0 --json

The rollouts are sampled in this process, without servers, so that a run takes a minute or two. The
estimators, the choice of forks, the rows and the update are those of GRPO.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from agl_adapter_trajectory import Certificate, TrajectoryRow
from agl_algo_grpo import GRPOConfig
from agl_algo_grpo.batches import Row
from agl_algo_grpo.credit import to_paths
from agl_algo_grpo.policy import Policy
from agl_algo_grpo.samples import Group, Sample, Step, version_of
from agl_algo_grpo.training import to_rows
from agl_algo_grpo.update import update
from agl_credit import choose_forks
from doors import END, Decisive, encode, make_model, question, text_of, turns_of, wanted

__all__ = ["compare", "train"]

METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"tasks_per_step": 8, "group_size": 8},
    "forked": {
        "tasks_per_step": 16,
        "group_size": 2,
        "credit": {"type": "forked", "forks": 2, "samples": 4},
    },
}
LIMIT = 0.6
"""The share of GRPO's tokens that forks are meant to need where they help."""
WINDOW = 3
"""Steps over which rewards are averaged."""
Curve = list[tuple[int, float]]
"""Tokens sampled before a step, and the mean reward of the step's rollouts."""


@dataclass
class Walk:
    """A rollout: its tokens so far, and whether all answers were right."""

    ids: list[int] = field(default_factory=list[int])
    responses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    right: bool = True
    parent: str | None = None
    repeated: int = 0

    def fork(self, at: int, name: str, decisive: Decisive) -> Walk:
        """Return a walk that repeats the first turns."""
        responses = self.responses[:at]
        ids = self.ids[: responses[-1][1]] if at else []
        right = all(
            text_of(ids[start:end]) == wanted(turn, decisive)
            for turn, (start, end) in enumerate(responses)
        )
        return Walk(ids, responses, right, name, at)


class Walker:
    """Samples rollouts from a policy."""

    def __init__(self, policy: Policy, decisive: Decisive) -> None:
        self._policy = policy
        self._decisive: Decisive = decisive

    def go_on(self, walks: Sequence[Walk]) -> None:
        """Sample the turns that the walks have not done."""
        for turn in range(turns_of(self._decisive)):
            active = [walk for walk in walks if len(walk.responses) == turn]
            if not active:
                continue
            for walk in active:
                walk.ids += encode(question(turn, self._decisive))
            for walk, answer in zip(active, self._sample(active), strict=True):
                walk.responses.append((len(walk.ids), len(walk.ids) + len(answer)))
                walk.ids += answer
                walk.right &= text_of(answer) == wanted(turn, self._decisive)

    def _sample(self, walks: Sequence[Walk]) -> list[list[int]]:
        width = max(len(walk.ids) for walk in walks)
        padding = [width - len(walk.ids) for walk in walks]
        ids = [[0] * n + walk.ids for n, walk in zip(padding, walks, strict=True)]
        mask = [[0] * n + [1] * len(walk.ids) for n, walk in zip(padding, walks, strict=True)]
        with torch.no_grad():
            whole = self._policy.model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                do_sample=True,
                top_k=0,
                max_new_tokens=16,
            )
        answers = [answer.tolist() for answer in whole[:, width:]]
        return [a[: a.index(END) + 1] if END in a else a for a in answers]

    def samples(self, walks: Sequence[Walk], names: Sequence[str], step: int) -> list[Sample]:
        """Return the samples to train on, with the log-probabilities of their tokens."""
        made = [_row(walk, step) for walk in walks]
        rows = [
            Row(
                torch.tensor(r.token_ids),
                torch.tensor(r.mask, dtype=torch.bool),
                zeros,
                zeros,
                0,
            )
            for r in made
            for zeros in [torch.zeros(len(r.token_ids))]
        ]
        for row, known in zip(made, self._policy.evaluate(rows), strict=True):
            row.logprobs = (known.raw * torch.tensor(row.mask)).tolist()
        return [
            Sample(
                name,
                float(walk.right),
                [row],
                calls=[(0, number) for number in range(len(row.responses))],
                parent=walk.parent,
                repeated=walk.repeated,
            )
            for walk, name, row in zip(walks, names, made, strict=True)
        ]


def _row(walk: Walk, step: int) -> TrajectoryRow:
    own = walk.responses[walk.repeated :]
    mask = [0] * len(walk.ids)
    for start, end in own:
        mask[start:end] = [1] * (end - start)
    return TrajectoryRow(
        agent="*",
        token_ids=walk.ids,
        mask=mask,
        responses=own,
        rewards=[None] * len(own),
        span_ids=[""] * len(own),
        certificate=Certificate(model_versions=[version_of(step)]),
    )


def collect(walker: Walker, config: GRPOConfig, decisive: Decisive, step: int) -> Step:
    """Sample the rollouts and the forks of a step."""
    size = config.group_size
    roots = [Walk() for _ in range(config.tasks_per_step * size)]
    walker.go_on(roots)
    names = [f"r{i}" for i in range(len(roots))]
    samples = walker.samples(roots, names, step)
    groups = [Group(g, samples[g * size : (g + 1) * size]) for g in range(config.tasks_per_step)]
    if config.credit.type == "forked":
        forks: list[tuple[int, Walk]] = []
        for group in groups:
            points = choose_forks(
                to_paths(group.samples),
                config.credit.forks or size,
                by=config.credit.choose,
                rng=np.random.default_rng([config.seed, step, group.index]),
            )
            for point in points:
                i = group.index * size + point.path
                fork = roots[i].fork(point.at, names[i], decisive)
                forks += [(group.index, replace(fork)) for _ in range(config.credit.samples)]
        for _, walk in forks:
            walk.ids, walk.responses = list(walk.ids), list(walk.responses)
        walker.go_on([walk for _, walk in forks])
        named = [f"f{i}" for i in range(len(forks))]
        made = walker.samples([walk for _, walk in forks], named, step)
        for (index, _), sample in zip(forks, made, strict=True):
            groups[index].forks.append(sample)
    found = Step(number=step, groups=groups, rewards=[sample.reward for sample in samples])
    found.sampled_tokens = sum(sum(row.mask) for sample in found.samples for row in sample.rows)
    return found


def evaluate(walker: Walker, count: int, step: int) -> float:
    """Return the mean reward of further rollouts, which change nothing in the run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + step)
        walks = [Walk() for _ in range(count)]
        walker.go_on(walks)
    return fmean(walk.right for walk in walks)


def train(
    folder: Path, method: str, *, decisive: Decisive, seed: int, tokens: int, evaluation: int = 0
) -> Curve:
    """Train a new model until it has sampled a number of tokens.

    Args:
        folder: Folder of the models.
        method: Name of the method.
        decisive: The turn in which the code is asked for.
        seed: Seed of the model and of sampling.
        tokens: Sampled tokens.
        evaluation: Number of further rollouts before each step, from which the curve takes its
            reward in place of the step's own; their tokens do not count.
    """
    torch.set_num_threads(1)
    base = make_model(folder / f"base-{decisive}-{seed}", decisive, seed=seed)
    config = GRPOConfig(
        model=base,
        learning_rate=5e-4,
        advantage="group-mean",
        seed=seed,
        device="cpu",
        **METHODS[method],
    )
    policy = Policy(config, base)
    torch.manual_seed(seed)
    walker = Walker(policy, decisive)
    curve: Curve = []
    sampled = step = 0
    while sampled < tokens:
        known = evaluate(walker, evaluation, step) if evaluation else None
        found = collect(walker, config, decisive, step)
        curve.append((sampled, fmean(found.rewards) if known is None else known))
        sampled += found.sampled_tokens
        update(policy, to_rows(found, config), config, step)
        step += 1
    return curve


def smooth(curve: Curve) -> Curve:
    """Return the curve with the mean reward of each step and those before it in the window."""
    rewards = [reward for _, reward in curve]
    return [
        (tokens, fmean(rewards[max(0, i - WINDOW + 1) : i + 1]))
        for i, (tokens, _) in enumerate(curve)
    ]


def tokens_to(curve: Curve, target: float) -> int | None:
    """Return the sampled tokens before the first step whose smoothed reward reaches a target."""
    return next((tokens for tokens, reward in smooth(curve) if reward >= target), None)


def compare(
    folder: Path,
    *,
    decisive: Decisive,
    seed: int,
    tokens: int,
    target: float | None = None,
    evaluation: int = 0,
) -> dict[str, Any]:
    """Train with each method from the same model; compare the tokens to a reward.

    Args:
        folder: Folder of the models.
        decisive: The turn in which the code is asked for.
        seed: Seed of the model and of sampling.
        tokens: Sampled tokens of each run.
        target: The reward; None: the highest that GRPO reaches.
        evaluation: See :func:`train`.
    """
    began = time.monotonic()
    curves = {
        method: train(
            folder, method, decisive=decisive, seed=seed, tokens=tokens, evaluation=evaluation
        )
        for method in METHODS
    }
    if target is None:
        target = max(reward for _, reward in smooth(curves["grpo"]))
    needed = {method: tokens_to(curve, target) for method, curve in curves.items()}
    return {
        "decisive": decisive,
        "seed": seed,
        "first": curves["grpo"][0][1],
        "target": target,
        "grpo": needed["grpo"],
        "forked": needed["forked"],
        "ratio": needed["forked"] / needed["grpo"] if needed["forked"] and needed["grpo"] else None,
        "seconds": round(time.monotonic() - began),
        "curves": curves,
    }


def verdict(ratios: Sequence[float | None]) -> str:
    """Return in words whether forks help.

    Args:
        ratios: Tokens with forks by those of GRPO, by seed; None if one missed the reward.
    """
    known = [ratio for ratio in ratios if ratio is not None]
    met, fewer = sum(ratio <= LIMIT for ratio in known), sum(ratio < 1 for ratio in known)
    count = len(ratios)
    if met == count:
        word = "forks help"
    elif fewer == count:
        word = "forks save tokens, but less than they should"
    else:
        word = "forks do not help"
    return (
        f"{word}: at most {LIMIT:.0%} of GRPO's tokens in {met} of {count} seeds, fewer tokens in "
        f"{fewer}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare forked credit with GRPO.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--decisive", nargs="+", default=["last", "first", "only"])
    parser.add_argument("--tokens", type=int, default=40_000, help="sampled tokens of a run")
    parser.add_argument("--tasks", type=int, nargs=2, default=[8, 16], help="tasks of a step")
    parser.add_argument("--groups", type=int, nargs=2, default=[8, 2], help="rollouts of a task")
    parser.add_argument("--forks", type=int, default=2, help="calls of a group that are forked")
    parser.add_argument("--target", type=float, help="reward; default: the highest of GRPO")
    parser.add_argument(
        "--evaluate", type=int, default=0, help="rollouts before a step that give its reward"
    )
    parser.add_argument("--output", type=Path, default=Path("agl-runs/late_reward"))
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    options = parser.parse_args()
    sizes = zip(METHODS.values(), options.tasks, options.groups, strict=True)
    for method, tasks, group_size in sizes:
        method.update(tasks_per_step=tasks, group_size=group_size)
    METHODS["forked"]["credit"]["forks"] = options.forks
    if not options.json:
        print("code at  seed  first  target     GRPO   forked  ratio")
    for decisive in options.decisive:
        ratios: list[float | None] = []
        for seed in options.seeds:
            found = compare(
                options.output,
                decisive=decisive,
                seed=seed,
                tokens=options.tokens,
                target=options.target,
                evaluation=options.evaluate,
            )
            ratios.append(found["ratio"])
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            forked = "-" if found["forked"] is None else found["forked"]
            ratio = "-" if found["ratio"] is None else f"{found['ratio']:.2f}"
            print(
                f"{decisive:7}  {seed:4}  {found['first']:5.2f}  {found['target']:6.2f}"
                f"  {found['grpo'] or '-':>7}  {forked:>7}  {ratio:>5}",
                flush=True,
            )
        if not options.json:
            print(f"{decisive}: {verdict(ratios)}", flush=True)


if __name__ == "__main__":
    main()
