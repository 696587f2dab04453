"""What a beam search claims, and what its winner is worth: searches whose truth is known.

The search is that of APO's defaults (three rounds of 16 edits, a beam of 4, 16 tasks a round, the
leader measured on all), with edits that change the chance of every task by a known amount. Then the
winner is promoted or not on 300 fresh pairs. With equal edits every claimed gain is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from agl_core.statistics import estimate_gain
from agl_prompt_search.selection import selection_excess
from tests.benchmark.bench_promotion import PAIRS, anytime

pytestmark = pytest.mark.benchmark

RUNS = 200
ROUNDS, EDITS, BEAM, BATCH = 3, 16, 4, 16

Edit = Callable[[np.random.Generator], float]
EDITS_BY_NAME: dict[str, Edit] = {
    "equal": lambda rng: 0.0,
    "all -.05": lambda rng: -0.05,
    "1 in 8 +.10": lambda rng: 0.1 * (rng.random() < 1 / 8),
    "1 in 8 +.20": lambda rng: 0.2 * (rng.random() < 1 / 8),
}


class Found(NamedTuple):
    """The end of a search.

    Attributes:
        replaced: Whether the winner is not the seed.
        claimed: Its validation score minus that of the seed.
        true: Its true gain.
        excess: Estimate of how much too high its score is.
        off: By how much its score is too high.
        proved: Whether the paired interval on fresh tasks, as many, shows a gain.
        promoted: Whether the anytime test promotes it on 300 fresh pairs.
    """

    replaced: bool
    claimed: float
    true: float
    excess: float
    off: float
    proved: bool
    promoted: bool


def chances(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.where(rng.random(count) < 0.5, 0.8, 0.2)


def drawn(rng: np.random.Generator, p: np.ndarray, gain: float) -> np.ndarray:
    return (rng.random(p.shape) < np.clip(p + gain, 0, 1)).astype(float)


def search(rng: np.random.Generator, tasks: int, edit: Edit) -> Found:
    """Run one search, then test its winner."""
    p = chances(rng, tasks)
    true, history = [0.0], [{}]

    def measure(version: int, rows: np.ndarray) -> float:
        known: dict[int, float] = history[version]
        for row in rows:
            if row not in known:
                known[int(row)] = float(drawn(rng, p[row : row + 1], true[version])[0])
        return float(np.mean([known[int(row)] for row in rows]))

    everything = np.arange(tasks)
    scores = {0: measure(0, everything)}
    beam, best = [0], 0
    for _ in range(ROUNDS):
        rows = rng.permutation(tasks)[: min(BATCH, tasks)]
        for _ in range(EDITS):
            true.append(true[beam[rng.integers(len(beam))]] + edit(rng))
            history.append({})
        fresh = range(len(history) - EDITS, len(history))
        ranked = sorted([*beam, *fresh], key=lambda one: (-measure(one, rows), -one))
        beam = ranked[:BEAM]
        scores[beam[0]] = measure(beam[0], everything)
        if scores[beam[0]] > scores[best]:
            best = beam[0]
    worth = float(np.mean(np.clip(p + true[best], 0, 1)))
    held_out, live = chances(rng, tasks), chances(rng, PAIRS)
    pairs = drawn(rng, held_out, 0.0), drawn(rng, held_out, true[best])
    differences = drawn(rng, live, true[best]) - drawn(rng, live, 0.0)
    return Found(
        replaced=best != 0,
        claimed=scores[best] - scores[0],
        true=true[best],
        excess=selection_excess(history, tasks),
        off=scores[best] - worth,
        proved=estimate_gain(pairs[0].tolist(), pairs[1].tolist()).is_shown,
        promoted=best != 0 and bool(anytime(differences[None])[0][0]),
    )


def shares(edits: str, tasks: int, runs: int) -> dict[str, float]:
    """Return the means of many searches."""
    rng = np.random.default_rng([tasks, len(edits)])
    found = [search(rng, tasks, EDITS_BY_NAME[edits]) for _ in range(runs)]
    means = {name: float(np.mean([getattr(one, name) for one in found])) for name in Found._fields}
    means["false"] = float(np.mean([one.promoted and one.true <= 0 for one in found]))
    return means


def test_tables() -> None:
    columns = ("replaced", "claimed", "true", "off", "excess", "proved", "promoted", "false")
    print(f"\n{'edits':14}{'tasks':>6}" + "".join(f"{name:>10}" for name in columns))
    for edits in EDITS_BY_NAME:
        for tasks in (16, 24, 48, 100):
            means = shares(edits, tasks, RUNS)
            print(f"{edits:14}{tasks:6}" + "".join(f"{means[name]:10.3f}" for name in columns))
