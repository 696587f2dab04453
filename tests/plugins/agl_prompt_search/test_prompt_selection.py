"""How much too high the score of a chosen prompt is, against searches whose truth is known."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from agl_prompt_search.selection import selection_excess


def null_search(chance: random.Random, tasks: int, batch: int) -> tuple[float, float]:
    """Choose among 33 equal prompts as a beam search does; return excess and its estimate."""
    difficulty = [0.8 if chance.random() < 0.5 else 0.1 for _ in range(tasks)]
    history: list[dict[int, float]] = [{}]

    def measure(one: dict[int, float], rows: list[int]) -> float:
        for row in rows:
            one.setdefault(row, float(chance.random() < difficulty[row]))
        return fmean(one[row] for row in rows)

    everything = list(range(tasks))
    best_score, beam = measure(history[0], everything), [history[0]]
    for _ in range(2):
        rows = chance.sample(everything, batch)
        fresh: list[dict[int, float]] = [{} for _ in range(16)]
        history += fresh
        beam = sorted([*beam, *fresh], key=lambda one: -measure(one, rows))[:4]
        best_score = max(best_score, measure(beam[0], everything))
    return best_score - fmean(difficulty), selection_excess(history, tasks)


@pytest.mark.parametrize(("tasks", "batch"), [(16, 16), (24, 16), (48, 16)])
def test_it_is_right_in_null_searches(tasks: int, batch: int):
    chance = random.Random(tasks)
    pairs = [null_search(chance, tasks, batch) for _ in range(40)]
    true, told = (fmean(column) for column in zip(*pairs, strict=True))
    assert told == pytest.approx(true, rel=0.35)


def test_a_clear_winner_is_hardly_too_high():
    seed = dict.fromkeys(range(24), 0.0)
    assert selection_excess([seed, dict.fromkeys(range(24), 1.0)], 24) == 0.0


def test_nothing_was_chosen():
    assert selection_excess([], 0) == 0.0
    assert selection_excess([{0: 1.0, 1: 0.0}], 2) == 0.0
    assert selection_excess([{0: 1.0}, {0: 0.0}], 1) == 0.0


def test_the_same_rewards_give_the_same_figure():
    chance = random.Random(1)
    rewards = [{row: chance.random() for row in range(20)} for _ in range(9)]
    assert selection_excess(rewards, 20) == selection_excess(rewards, 20) > 0
