"""Runs of a trainer in the cells of a notebook, in a real Jupyter kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat.v4 as notebook
import pytest

DEFINITIONS = """
import agl_core as agl
from agl_algorithm_kit import run_batch


@agl.rollout
def agent(task, prompt_template):
    return float(task)


@agl.algo
async def algorithm(store, train_dataset):
    prompt = agl.PromptTemplate(template="x", engine="f-string")
    batch = await run_batch(store, train_dataset, resources={"p": prompt}, mode="train")
    print("score", batch.score().mean)


def trainer(strategy, **parts):
    prompt = agl.PromptTemplate(template="x", engine="f-string")
    strategy = {"type": strategy, "server_port": 0} if strategy == "cs" else strategy
    return agl.Trainer(
        strategy=strategy, n_runners=2, initial_resources={"p": prompt}, tracer="dummy", **parts
    )
"""
CELLS = """
trainer("STRATEGY", algorithm=algorithm).fit(agent, [1, 2, 3])
---
trainer("STRATEGY").dev(agent, [1, 2])
print("dev ends")
---
print("mean", trainer("STRATEGY").evaluate(agent, [1, 3]).score().mean)
---
import asyncio
await asyncio.sleep(0)
from agl_store_memory import InMemoryLightningStore
store = InMemoryLightningStore()
await store.enqueue_rollout("the loop of the notebook goes on")
print((await store.query_rollouts()).total)
"""


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_cells_of_a_notebook(tmp_path: Path, strategy: str) -> None:
    texts = [DEFINITIONS, *CELLS.replace("STRATEGY", strategy).split("---")]
    made = notebook.new_notebook(cells=[notebook.new_code_cell(text) for text in texts])
    client = nbclient.NotebookClient(
        made,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # raises the error of a cell
    said = [stdout_of(cell) for cell in made.cells]
    assert said[1:] == ["score 2.0\n", "dev ends\n", "mean 2.0\n", "1\n"]


def stdout_of(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.get("name", "") == "stdout")
