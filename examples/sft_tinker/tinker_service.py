"""Tinker: the connection, rows of an export as training data, and training.

The environment variable ``TINKER_API_KEY`` selects the real service; without it the fake of this
folder serves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tinker

__all__ = ["Connection", "connected", "to_datum", "train"]


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to Tinker.

    Attributes:
        service: The client.
        model: The base model.
        learning_rate: A learning rate that fits the model.
    """

    service: tinker.ServiceClient
    model: str
    learning_rate: float


@contextmanager
def connected() -> Iterator[Connection]:
    """Yield a connection to the service, or to its fake."""
    if os.environ.get("TINKER_API_KEY"):
        with tinker.ServiceClient() as service:
            yield Connection(service, os.environ.get("TINKER_MODEL", "Qwen/Qwen3-8B"), 1e-4)
        return
    from aisle_agent import AISLES, TASKS, question
    from fake_model import make_base
    from fake_tinker import KEY, MODEL, serving

    base = make_base([question(task) for task in TASKS], AISLES)
    with (
        serving(base) as url,
        tinker.ServiceClient(base_url=url, api_key=KEY) as service,
    ):
        yield Connection(service, MODEL, 0.05)


def to_datum(row: dict[str, Any]) -> tinker.Datum:
    """Return a row of ``agl export sft --form tokens`` as Tinker's training data.

    The model reads each token and predicts the next one, so targets are the tokens one further.
    Only tokens that the model sampled have weight 1.
    """
    tokens, labels = row["input_ids"], row["labels"]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [float(label != -100) for label in labels[1:]],
        },
    )


async def train(
    client: tinker.TrainingClient,
    rows: Sequence[dict[str, Any]],
    *,
    steps: int,
    learning_rate: float,
) -> list[float]:
    """Train on all rows in each step; return the mean loss per token of each step."""
    data = [to_datum(row) for row in rows]
    tokens = sum(label != -100 for row in rows for label in row["labels"][1:])
    losses: list[float] = []
    for _ in range(steps):
        # Both requests are on their way before the first is waited for, as Tinker advises.
        gradient = client.forward_backward(data, "cross_entropy")
        update = client.optim_step(tinker.AdamParams(learning_rate=learning_rate))
        losses.append((await gradient).metrics["loss:sum"] / tokens)
        await update
    return losses
