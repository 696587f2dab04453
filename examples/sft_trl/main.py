"""Expert iteration: repeats sampling, selection of the best answers, and fine-tuning with TRL.

Rejection sampling fine-tuning (Yuan et al. 2023, arXiv:2308.01825) as an algorithm of the
framework: rollouts go through the store, `agl_export` writes them as a dataset, TRL trains,
and the next snapshot of resources names the new model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

import agl_core as agl
from agl_algorithm_kit import run_batch
from agl_export import Selection, SftOptions, export_dataset, sft_rows

HERE = Path(__file__).parent


def make_algorithm(arguments: argparse.Namespace, folder: Path, told: list[dict[str, Any]]) -> Any:
    """Return the algorithm; it appends a row per round to ``told``."""
    from fine_tune import fine_tune
    from sft_model import make_model

    options = SftOptions(arguments.form, arguments.best, min_reward=1.0)

    @agl.algo
    async def expert_iteration(store: agl.LightningStore, train_dataset: list[Any]) -> None:
        model = await anyio.to_thread.run_sync(make_model, folder / "model-0")
        for number in range(arguments.rounds + 1):
            llm = agl.LLM(
                endpoint="in this process",
                model=str(model),
                sampling_parameters={"temperature": 1.0},
            )
            tasks = [task for task in train_dataset for _ in range(arguments.samples)]
            batch = await run_batch(store, tasks, resources={"main_llm": llm}, mode="train")
            score = batch.score()
            print(f"round {number}: {score}", flush=True)
            told.append({"round": number, "rollouts": len(batch), **score._asdict(), "rows": 0})
            if number == arguments.rounds:
                return
            dataset = folder / f"best-{number}.jsonl"
            report = await export_dataset(
                store,
                lambda samples, counts: sft_rows(samples, options, counts),
                dataset,
                selection=Selection(resources_id=batch.resources_id),
            )
            print(report, flush=True)
            told[-1]["rows"] = sum(report.rows.values())
            better = folder / f"model-{number + 1}"
            train = partial(fine_tune, model, dataset, better, epochs=40, learning_rate=1e-3)
            told[-1]["loss"] = await anyio.to_thread.run_sync(train)
            model = better

    return expert_iteration


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="fine-tunings")
    parser.add_argument("--samples", type=int, default=8, help="rollouts per task and round")
    parser.add_argument("--best", type=int, default=4, help="rollouts kept per task")
    parser.add_argument("--form", choices=["tokens", "messages"], default="tokens")
    parser.add_argument("--folder", type=Path, help="where models and datasets go; a temporary one")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    arguments = parser.parse_args()

    from sft_agent import answer
    from sft_tasks import TASKS

    began = time.monotonic()
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        trainer = agl.Trainer(
            algorithm=make_algorithm(arguments, folder, told),
            store="memory",
            strategy="shm",
            n_runners=2,
        )
        trainer.fit(answer, TASKS)
    if trainer.interrupted:
        sys.exit(130)  # as a shell reports Ctrl+C; the table would lack rounds
    if arguments.json:
        print(json.dumps({"rounds": told}))
        return
    print(f"{time.monotonic() - began:.1f} s\n")
    print("round  model    rollouts  reward  95 % interval  trained on  mean loss")
    for row in told:
        reward = f"{row['mean']:7.2f}  {row['low']:.2f} to {row['high']:.2f}"
        loss = f"{row['loss']:10.2f}" if "loss" in row else f"{'-':>10}"
        model = f"model-{row['round']}"
        print(f"{row['round']:5}  {model:7} {row['rollouts']:9} {reward} {row['rows']:12} {loss}")


if __name__ == "__main__":
    main()
