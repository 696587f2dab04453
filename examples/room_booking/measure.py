"""Measures the gain of APO or GEPA on held-out tasks of this example, over several seeds.

Each seed gives other tasks and another search. Progress goes to standard error.

    python examples/room_booking/measure.py apo           # five seeds, a minute or two
    python examples/room_booking/measure.py gepa --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

import agl_core as agl
from agent import book_room, seed_resources
from agl_core.statistics import Gain
from endpoint import is_simulated, llm_proxy, model_name
from optimise import apo, gepa
from report import say
from tasks import make_splits

VAL_TASKS = 20
MAKERS: dict[str, Any] = {"apo": apo, "gepa": gepa}
OPTIONS: dict[str, dict[str, Any]] = {
    # With 400 rollouts, many rounds of few candidates do better than few rounds of many candidates:
    # an edit mends only one or two faults.
    "apo": {
        "beam_width": 1,
        "branch_factor": 2,
        "beam_rounds": 12,
        "gradient_batch_size": 4,
        "val_batch_size": VAL_TASKS,
    },
    "gepa": {},  # the defaults are good
}


@dataclass(frozen=True)
class Measurement:
    """One run.

    Attributes:
        seed: Seed of tasks and search.
        rollouts: Number of rollouts of the search.
        calls: Calls of the models that propose edits.
        best: Version of the winner.
        val_before: Mean reward of the seed prompt on the validation tasks.
        val_after: Mean reward of the winner on the validation tasks.
        before: Mean reward of the seed prompt on the held-out tasks.
        after: Mean reward of the winner on the held-out tasks.
        gain: Gain of the winner over the seed prompt on the held-out tasks, paired by task.
    """

    seed: int
    rollouts: int
    calls: int
    best: str
    val_before: float
    val_after: float
    before: float
    after: float
    gain: Gain


def main() -> int:
    options = parse_arguments()
    measured: list[Measurement] = []
    for seed in range(1, options.seeds + 1):
        one = measure(options.algorithm, seed, options.rollouts, options.runners)
        measured.append(one)
        say(f"seed {seed}: {one.before:.3f} -> {one.after:.3f} in {one.rollouts} rollouts")
    (print_json if options.json else print_table)(options.algorithm, measured)
    return 0


def measure(name: str, seed: int, max_rollouts: int, n_runners: int) -> Measurement:
    """Run an algorithm once, then measure the seed prompt and the winner on held-out tasks."""
    tasks = make_splits(seed, val=VAL_TASKS)
    algorithm = MAKERS[name](seed=seed, max_rollouts=max_rollouts, **OPTIONS[name])
    proxy = llm_proxy()
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter="messages",
        strategy="shm",
        n_runners=n_runners,
        proxy=proxy,
        initial_resources=seed_resources(),
    )
    proxy.set_store(trainer.store)
    asyncio.run(proxy.start())  # once for all three steps: the resources hold its address
    try:
        before = trainer.evaluate(book_room, tasks.test, resources=seed_resources())
        trainer.fit(book_room, tasks.train, val_dataset=tasks.val)
        if trainer.interrupted:
            raise KeyboardInterrupt
        latest = asyncio.run(trainer.store.get_latest_resources())
        assert latest is not None
        after = trainer.evaluate(book_room, tasks.test, resources=latest.resources_id)
    finally:
        asyncio.run(proxy.stop())
    state = algorithm.state
    assert state is not None
    first, best = state.candidate("v0").score(), state.candidate(state.best).score()
    assert first is not None
    assert best is not None
    return Measurement(
        seed=seed,
        rollouts=state.spent.rollouts,
        calls=state.spent.calls,
        best=state.best,
        val_before=first.mean,
        val_after=best.mean,
        before=before.score().mean,
        after=after.score().mean,
        gain=after.gain_over(before),
    )


def print_table(name: str, measured: list[Measurement]) -> None:
    """Print a row per run, the gain with its interval, and the mean gain."""
    console = Console(highlight=False)
    mark = "SIMULATED " if is_simulated() else ""
    table = Table(title=f"{name.upper()} on held-out tasks, {mark}model {model_name()}")
    for heading in ("seed", "rollouts", "calls", "validation", "held-out", "gain", "95 %"):
        table.add_column(heading, justify="right")
    for one in measured:
        table.add_row(
            str(one.seed),
            str(one.rollouts),
            str(one.calls),
            f"{one.val_before:.3f} to {one.val_after:.3f}",
            f"{one.before:.3f} to {one.after:.3f}",
            f"{one.gain.mean:+.3f}",
            f"{one.gain.low:.2f} to {one.gain.high:.2f}",
        )
    console.print(table)
    worse = sum(one.val_after < one.val_before for one in measured)
    console.print(summary_of([one.gain.mean for one in measured]))
    console.print(f"worse than the seed prompt on validation: {worse} of {len(measured)}")


def summary_of(gains: list[float]) -> str:
    """Return the mean gain and its extremes: a few searches are too few for an interval."""
    return f"gain: mean {fmean(gains):+.3f} of {len(gains)}, {min(gains):+.3f} to {max(gains):+.3f}"


def print_json(name: str, measured: list[Measurement]) -> None:
    """Print one JSON object."""
    runs = [{**asdict(one), "gain": one.gain._asdict()} for one in measured]
    about = {"algorithm": name, "model": model_name()}
    gains = [one.gain.mean for one in measured]
    gain = {"mean": fmean(gains), "lowest": min(gains), "highest": max(gains)}
    print(json.dumps({**about, "gain": gain, "runs": runs}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "algorithm", nargs="?", choices=sorted(MAKERS), default="apo", help="(default: apo)"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--seeds", type=int, default=5, help="runs (default: 5)")
    parser.add_argument("--rollouts", type=int, default=400, help="budget of each (default: 400)")
    parser.add_argument("--runners", type=int, default=8, help="at once (default: 8)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
