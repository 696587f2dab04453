"""A training run in its own process, for tests that kill it or its runners.

Runners are processes, the store is a file, and the run is named, so a second start resumes it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

from openai import OpenAI

import agl_core as agl
from agl_algo_grpo import GRPO
from agl_store_sqlite import SqliteLightningStore


@agl.rollout
def agent(task: dict[str, Any], llm: agl.LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
        answer = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": "Go."}]
        )
    if task["deadly"] and not Path(task["deadly"]).exists():
        Path(task["deadly"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return len(set(answer.choices[0].message.content or "")) / 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--deadly",
        default="",
        help="file; a runner that does not find it creates it and kills itself",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    store = SqliteLightningStore(str(options.folder / "store.db"))
    trainer = agl.Trainer(
        algorithm=GRPO(
            model=options.model,
            steps=options.steps,
            tasks_per_step=2,
            group_size=4,
            learning_rate=1e-3,
            max_tokens=6,
            threads=1,
            server={"type": "hf", "threads": 1},
            output_dir=str(options.folder),
            checkpoint_every=2,
        ),
        adapter="trajectory",
        store=store,
        strategy={"type": "cs", "start_method": "spawn", "server_port": 0},
        n_runners=2,
        run="night",
    )
    trainer.fit(agent, [{"number": i, "deadly": options.deadly} for i in range(8)])
    rollouts = asyncio.run(store.query_rollouts())
    print(f"rollouts: {rollouts.total}", flush=True)


if __name__ == "__main__":
    main()
