"""Improve an agent's prompt: automatic prompt optimisation on booking meeting rooms.

Without OPENAI_BASE_URL or OPENAI_API_KEY a SIMULATED model answers; a run takes under a minute.
Progress goes to standard error, the result to standard output. Ctrl+C stops the run; --resume
continues it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from openai import OpenAIError

import agl_core as agl
from agent import book_room, seed_resources
from agl_algorithm_kit import stored_runs
from agl_proxy_direct import DirectProxy
from cost import GPT_4_1_MINI, Price, describe_cost
from endpoint import check_endpoint, ensure_endpoint, is_simulated, llm_proxy, model_name
from optimise import apo
from report import Result, print_interrupted, print_json, print_result, say, show_search
from tasks import Splits, make_splits

try:
    from agl_algo_apo import APO, APOState, Candidate
    from agl_store_sqlite import SqliteLightningStore
except ImportError as missing:
    needed = "./plugins/agl_prompt_search ./plugins/agl_algo_apo ./plugins/agl_store_sqlite"
    raise SystemExit(f"{missing}: pip install {needed}") from None

EXAMPLES = """examples:
  python examples/room_booking/main.py
  python examples/room_booking/main.py --resume
  python examples/room_booking/main.py --json > result.json
  OPENAI_API_KEY=... OPENAI_MODEL=gpt-4.1-mini python examples/room_booking/main.py --rollouts 600
"""
STORE = Path("agl-runs/room_booking/demo.db")
FAILED = 2
INTERRUPTED = 130  # what shells report for a program that Ctrl+C ended

# Many rounds with few candidates each, because an edit mends only one or two faults.
SEARCH = {"beam_width": 1, "branch_factor": 2, "beam_rounds": 10, "val_batch_size": 24}


def main() -> int:
    options = parse_arguments()
    cost = describe_cost(options.rollouts, options.held_out, Price(*options.price))
    try:
        ensure_endpoint(options.seed)
        who = "A paid model" if is_simulated() else model_name()
        say(f"{who} would cost {cost}.")
        check_endpoint()
    except OpenAIError as error:
        say(f"The model {model_name()} at the given endpoint does not answer: {error}")
        return FAILED
    options.store.parent.mkdir(parents=True, exist_ok=True)
    store = SqliteLightningStore(options.store)
    demo = Demo(store, options)
    try:
        run = demo.choose_run()
        if run is None:
            say(f"There is no run with seed {options.seed} to resume in {options.store}.")
            return FAILED
        result = demo.run(run)
    except KeyboardInterrupt:
        print_interrupted(demo.history, resume_command(options.store), options.json)
        return INTERRUPTED
    finally:
        asyncio.run(store.close())
    (print_json if options.json else print_result)(result)
    return 0


class Demo:
    """One run of the demo.

    Args:
        store: Store of the run.
        options: Options of the command line.

    Attributes:
        history: The prompts proposed so far.
    """

    def __init__(self, store: SqliteLightningStore, options: argparse.Namespace) -> None:
        self._store = store
        self._options = options
        self.history: Sequence[Candidate] = ()

    def choose_run(self) -> str | None:
        """Return the name of a new run, or of the run to resume; None if there is none."""
        stem = f"demo-seed-{self._options.seed}"
        pattern = re.compile(rf"{stem}(-\d+)?")
        runs = [name for name in asyncio.run(stored_runs(self._store)) if pattern.fullmatch(name)]
        if self._options.resume:
            return runs[-1] if runs else None
        return f"{stem}-{len(runs) + 1}" if runs else stem

    def run(self, name: str) -> Result:
        """Search, then measure the seed prompt and the found one on the held-out tasks.

        Raises:
            KeyboardInterrupt: Ctrl+C was pressed.
        """
        started = time.monotonic()
        tasks = make_splits(self._options.seed, test=self._options.held_out)
        algorithm = apo(
            seed=self._options.seed,
            max_rollouts=self._options.rollouts,
            output_dir=self._options.store.parent,
            **SEARCH,
        )
        proxy = llm_proxy(self._earlier_port(name) if self._options.resume else None)
        trainer = agl.Trainer(
            algorithm=algorithm,
            adapter="messages",
            store=self._store,
            strategy="shm",
            n_runners=self._options.runners,
            proxy=proxy,
            initial_resources=seed_resources(),
            run=name,
        )
        say(
            f"{len(tasks.train)} training, {len(tasks.val)} validation and {len(tasks.test)} "
            f"held-out tasks; {self._options.runners} runners; model {model_name()}; "
            f"run {name} in {self._options.store}"
        )
        show_search()
        proxy.set_store(self._store)
        asyncio.run(proxy.start())  # for search and measurement: resources hold its address
        try:
            return self._train(trainer, algorithm, proxy, tasks, name, started)
        finally:
            asyncio.run(proxy.stop())

    def _train(
        self,
        trainer: agl.Trainer,
        algorithm: APO[dict[str, object]],
        proxy: DirectProxy,
        tasks: Splits,
        name: str,
        started: float,
    ) -> Result:
        trainer.fit(book_room, tasks.train, val_dataset=tasks.val)
        checkpoint = asyncio.run(stored_runs(self._store))[name]
        state = algorithm.state or APOState.model_validate(checkpoint.state)
        self.history = state.history
        if trainer.interrupted:
            raise KeyboardInterrupt

        # A search leaves what it found as the latest resources of the store.
        latest = asyncio.run(self._store.get_latest_resources())
        assert latest is not None
        held_out = tasks.test
        say("the seed prompt and the found one on the held-out tasks")
        seed = {**seed_resources(), "llm": proxy.as_resource()}
        found = {**latest.resources, "llm": proxy.as_resource()}
        tested = trainer.compare(book_room, held_out, before=seed, after=found)
        return Result(
            model=model_name(),
            simulated=is_simulated(),
            run=name,
            store=str(self._options.store),
            history=state.history,
            found=state.candidate(state.best),
            excess=state.excess(),
            resources_id=latest.resources_id,
            seed_score=tested.before.score(),
            found_score=tested.after.score(),
            gain=tested.gain(),
            rollouts=state.spent.rollouts,
            calls=state.spent.calls,
            seconds=time.monotonic() - started,
        )

    def _earlier_port(self, name: str) -> int | None:
        """Return the proxy's port of the resumed run, because queued rollouts hold the address."""
        pages = self._store.query_resources(resources_id_contains=f"{name}/")
        found = [one.resources.get("llm") for one in asyncio.run(pages)]
        ports = [urlsplit(llm.get_base_url()).port for llm in found if isinstance(llm, agl.LLM)]
        return ports[-1] if ports else None


def resume_command(store: Path) -> str:
    """Return the command that resumes this run, in any directory."""
    arguments = [one for one in sys.argv[1:] if one != "--resume"]
    program = [sys.executable, str(Path(__file__).absolute())]
    return shlex.join([*program, *arguments, "--store", str(store.absolute()), "--resume"])


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
        "--rollouts", type=int, default=1000, help="budget of the search (default: 1000)"
    )
    parser.add_argument(
        "--held-out", type=int, default=120, help="tasks of the final measurement (default: 120)"
    )
    parser.add_argument(
        "--price",
        type=float,
        nargs=2,
        metavar=("INPUT", "OUTPUT"),
        default=(GPT_4_1_MINI.input, GPT_4_1_MINI.output),
        help="of a million tokens of the model, in dollars (default: that of gpt-4.1-mini)",
    )
    parser.add_argument("--runners", type=int, default=8, help="at once (default: 8)")
    parser.add_argument(
        "--store", type=Path, default=STORE, help=f"file of the store (default: {STORE})"
    )
    parser.add_argument("--resume", action="store_true", help="resume the last run of this seed")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
