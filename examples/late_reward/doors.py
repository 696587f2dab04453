"""The task and the model: open doors, give a code at one of them, and learn at the end.

The model answers in five turns. In four of them it says that it opens the door; in one, the last
or the first, it gives a code, a digit that it has to find out. The reward comes after the last
turn: 1 if every answer was right, else 0. A third task has the code's turn only, so there is no
credit to share. Tokens are ASCII characters, so there is no tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from agl_tiny_model import build_llama

__all__ = [
    "CODE",
    "END",
    "Decisive",
    "encode",
    "make_model",
    "question",
    "text_of",
    "turns_of",
    "wanted",
]

Decisive = Literal["last", "first", "only"]
TURNS = 5
CODE = "7"
USER, ASSISTANT, END = 1, 2, 3
"""Tokens that begin a question, begin an answer, and end either."""


def turns_of(decisive: Decisive) -> int:
    """Return the number of turns of a task."""
    return 1 if decisive == "only" else TURNS


def is_decisive(turn: int, decisive: Decisive) -> bool:
    return turn == (TURNS - 1 if decisive == "last" else 0)


def question(turn: int, decisive: Decisive) -> str:
    return "code?" if is_decisive(turn, decisive) else f"door {turn}?"


def wanted(turn: int, decisive: Decisive) -> str:
    return CODE if is_decisive(turn, decisive) else f"open door {turn}"


def encode(asked: str, answer: str | None = None) -> list[int]:
    """Return the tokens of a question, and of its answer if there is one."""
    tokens = [USER, *asked.encode(), END, ASSISTANT]
    return tokens if answer is None else [*tokens, *answer.encode(), END]


def make_model(folder: Path, decisive: Decisive, *, seed: int = 0, steps: int = 150) -> Path:
    """Build a small transformer that knows the answers at doors, unless it is there already.

    It is first trained on conversations in which the code is random (**warm-up**): reinforcement
    learning can only make answers more likely that the model gives at times.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch

    model = build_llama(128, length=256, pad=0, end=END, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rng = random.Random(seed)
    for _ in range(steps):
        batch = torch.tensor([_conversation(rng, decisive) for _ in range(32)])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def _conversation(rng: random.Random, decisive: Decisive) -> list[int]:
    """Return the tokens of a conversation of the warm-up; all have the same length."""
    tokens: list[int] = []
    for turn in range(turns_of(decisive)):
        answer = wanted(turn, decisive)
        if is_decisive(turn, decisive):
            answer = str(rng.randrange(10))
        tokens += encode(question(turn, decisive), answer)
    return tokens


def text_of(tokens: Sequence[int]) -> str:
    """Return an answer without its end."""
    return bytes(token for token in tokens if token != END).decode("ascii", "replace")
