"""Expert iteration on Tinker: sample, keep what was rewarded, train on its tokens, sample again.

python examples/sft_tinker/main.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tinker

import agl_core as agl
from agl_algorithm_kit import run_batch
from agl_export import Selection, SftOptions, export_dataset, read_rows, sft_rows
from aisle_agent import TASKS, make_agent
from tinker_service import connected, train


def make_algorithm(
    options: argparse.Namespace, client: tinker.TrainingClient, model: str, table: list[Any]
) -> Any:
    """Return the algorithm; it appends a row per round to ``table``.

    Args:
        options: Options of the command.
        client: Trains the weights.
        model: The base model.
        table: Gets the results.
    """
    best = SftOptions("tokens", options.best, min_reward=1.0)

    @agl.algo
    async def expert_iteration(store: agl.LightningStore, train_dataset: list[Any]) -> None:
        weights = model
        for number in range(options.rounds + 1):
            llm = agl.LLM(
                endpoint="tinker", model=weights, sampling_parameters={"temperature": 1.0}
            )
            tasks = [task for task in train_dataset for _ in range(options.samples)]
            batch = await run_batch(store, tasks, resources={"main_llm": llm}, mode="train")
            row = {"round": number, "weights": weights, "rollouts": len(batch)}
            row |= batch.score()._asdict()
            table.append(row)
            if number == options.rounds:
                return
            dataset = options.folder / f"best-{number}.jsonl"
            await export_dataset(
                store,
                lambda samples, counts: sft_rows(samples, best, counts),
                dataset,
                selection=Selection(resources_id=batch.resources_id),
            )
            rows = list(read_rows(dataset))
            losses = await train(
                client, rows, steps=options.steps, learning_rate=options.learning_rate
            )
            row |= {"trained on": len(rows), "loss": losses[0], "last loss": losses[-1]}
            weights = (await client.save_weights_for_sampler(f"round-{number + 1}")).path

    return expert_iteration


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model with Tinker.")
    parser.add_argument("--rounds", type=int, default=1, help="fine-tunings")
    parser.add_argument("--samples", type=int, default=8, help="rollouts per task and round")
    parser.add_argument("--best", type=int, default=4, help="rollouts kept per task")
    parser.add_argument("--steps", type=int, default=20, help="steps per fine-tuning")
    parser.add_argument("--learning-rate", type=float, help="1e-4; 0.05 for the fake's model")
    parser.add_argument("--rank", type=int, default=16, help="rank of the LoRA adapter")
    parser.add_argument("--folder", type=Path, help="where the datasets go; a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    if not os.environ.get("TINKER_API_KEY"):
        print("No TINKER_API_KEY: a FAKE service trains a model of one matrix.", file=sys.stderr)
    began = time.monotonic()
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, connected() as connection:
        options.folder = (options.folder or Path(temporary)).absolute()
        options.learning_rate = options.learning_rate or connection.learning_rate
        client = connection.service.create_lora_training_client(
            connection.model, rank=options.rank
        ).result()
        trainer = agl.Trainer(
            algorithm=make_algorithm(options, client, connection.model, table),
            store="memory",
            strategy="shm",
            n_runners=4,
        )
        trainer.fit(make_agent(connection.service, client.get_tokenizer()), TASKS)
    if trainer.interrupted:
        sys.exit(130)  # as a shell reports Ctrl+C; the table would lack rounds
    if options.json:
        print(*map(json.dumps, table), sep="\n")
        return
    print(f"{time.monotonic() - began:.1f} s\n")
    print("round  rollouts  reward  95 % interval  trained on  loss          weights")
    for row in table:
        reward = f"{row['mean']:7.2f}  {row['low']:.2f} to {row['high']:.2f}"
        trained = f"{row.get('trained on', 0):12}"
        loss = f"{row['loss']:.2f} to {row['last loss']:.2f}" if "loss" in row else "-"
        print(
            f"{row['round']:5} {row['rollouts']:9} {reward} {trained}  {loss:12}  {row['weights']}"
        )


if __name__ == "__main__":
    main()
