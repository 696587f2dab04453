"""Watch an agent get better: a prompt search on booking meeting rooms.

Without OPENAI_BASE_URL or OPENAI_API_KEY a SIMULATED model answers, and it takes under a minute.
Progress goes to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from openai import OpenAIError

import agl_core as agl
from agent import book_room, seed_resources
from agl_core.algorithm import estimate_mean
from endpoint import check_endpoint, ensure_endpoint, is_simulated, model_name
from report import Result, print_interrupted, print_json, print_result, say
from search import Candidate, prompt_search
from tasks import make_splits

EXAMPLES = """examples:
  python examples/room_booking/main.py
  python examples/room_booking/main.py --json > result.json
  OPENAI_API_KEY=... OPENAI_MODEL=gpt-4.1-mini python examples/room_booking/main.py --rollouts 800
"""
ENDPOINT_FAILED = 2
INTERRUPTED = 130  # what shells report for a program that Ctrl+C ended


def main() -> int:
    options = parse_arguments()
    history: list[Candidate] = []
    try:
        ensure_endpoint(options.seed)
        check_endpoint()
        result = run(options.seed, options.rollouts, options.runners, history)
    except OpenAIError as error:
        say(f"The model {model_name()} at the given endpoint does not answer: {error}")
        return ENDPOINT_FAILED
    except KeyboardInterrupt:
        print_interrupted(history, options.json)
        return INTERRUPTED
    (print_json if options.json else print_result)(result)
    return 0


def run(seed: int, max_rollouts: int, n_runners: int, history: list[Candidate]) -> Result:
    """Search, then measure the seed prompt and the winner on the held-out tasks.

    Raises:
        KeyboardInterrupt: Ctrl+C was pressed; ``history`` holds what was measured by then.
    """
    started = time.monotonic()
    tasks = make_splits(seed)
    say(
        f"{len(tasks.train)} training, {len(tasks.val)} validation and {len(tasks.test)} held-out "
        f"tasks; {n_runners} runners; model {model_name()}"
    )
    trainer = agl.Trainer(
        algorithm=prompt_search(max_rollouts=max_rollouts, seed=seed, history=history, say=say),
        adapter="messages",
        strategy="shm",
        n_runners=n_runners,
        initial_resources=seed_resources(),
    )
    say("the seed prompt on the held-out tasks, to compare with later")
    before = trainer.evaluate(book_room, tasks.test)

    trainer.fit(book_room, tasks.train, val_dataset=tasks.val)
    if trainer.interrupted:
        raise KeyboardInterrupt

    # The winner is the latest in the store: what a deployment would read.
    latest = asyncio.run(trainer.store.get_latest_resources())
    assert latest is not None
    template = latest.resources["prompt"]
    assert isinstance(template, agl.PromptTemplate)
    say("the winner on the held-out tasks")
    after = trainer.evaluate(book_room, tasks.test, resources=latest.resources_id)
    gains = [b - a for a, b in zip(before.rewards(), after.rewards(), strict=True)]
    statistics = asyncio.run(trainer.store.statistics())
    return Result(
        model=model_name(),
        simulated=is_simulated(),
        history=history,
        winner=next(one for one in history if one.prompt == template.template),
        resources_id=latest.resources_id,
        seed_score=before.score(),
        winner_score=after.score(),
        gain=estimate_mean(gains),
        rollouts=statistics.get("total_rollouts", 0),
        seconds=time.monotonic() - started,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument(
        "--seed", type=int, default=7, help="of tasks, search and simulated model (default: 7)"
    )
    parser.add_argument(
        "--rollouts", type=int, default=2000, help="budget of the search (default: 2000)"
    )
    parser.add_argument("--runners", type=int, default=8, help="at once (default: 8)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
