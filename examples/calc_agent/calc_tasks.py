"""Generates word problems and their answers from a seed."""

from __future__ import annotations

import re
from random import Random
from typing import Any

__all__ = ["INSTRUCTIONS", "grade", "make_tasks", "train_tasks", "val_tasks"]

INSTRUCTIONS = (
    "Solve the problem. Work out every number with the tool calculate; do no arithmetic in your "
    "head. End with a line of the form 'Answer: NUMBER'."
)

_NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fay", "Goran", "Hana")
_THINGS = ("apples", "books", "candles", "marbles", "pencils", "stamps")


def make_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    """Return problems; equal seeds give equal problems.

    Args:
        count: Number of problems.
        seed: Seed of the generator.
    """
    dice = Random(seed)
    return [_make(dice, number) for number in range(count)]


def train_tasks() -> list[dict[str, Any]]:
    return make_tasks(64, seed=1)


def val_tasks() -> list[dict[str, Any]]:
    return make_tasks(32, seed=2)


def _make(dice: Random, number: int) -> dict[str, Any]:
    name, thing = dice.choice(_NAMES), dice.choice(_THINGS)
    a, b, c = dice.randint(12, 99), dice.randint(3, 19), dice.randint(2, 9)
    kind = number % 4
    if kind == 0:
        question = (
            f"{name} has {a} boxes with {b} {thing} each and gives away {c} boxes. "
            f"How many {thing} are left?"
        )
        answer = (a - c) * b
    elif kind == 1:
        question = (
            f"{name} buys {a} {thing} at {b} cents each and pays with {c * 1000} cents. "
            f"How many cents of change are there? (It may be negative.)"
        )
        answer = c * 1000 - a * b
    elif kind == 2:
        total = a * c
        question = (
            f"{name} shares {total} {thing} equally among {c} friends, and each friend gets {b} "
            f"more from a shop. How many {thing} does each friend have?"
        )
        answer = a + b
    else:
        question = (
            f"{name} saves {a} cents in the first week and {b} cents more each week than in the "
            f"week before. How many cents has {name} saved after {c} weeks?"
        )
        answer = sum(a + b * week for week in range(c))
    return {"question": question, "answer": answer}


def grade(task: dict[str, Any], answer: str) -> float:
    """Return 1.0 if the last line of the form ``Answer: NUMBER`` has the right number, else 0.0."""
    found = re.findall(r"answer:\s*\**\s*(-?[\d,]*\.?\d+)", answer, flags=re.IGNORECASE)
    if not found:
        return 0.0
    return float(abs(float(found[-1].replace(",", "")) - task["answer"]) < 1e-6)
