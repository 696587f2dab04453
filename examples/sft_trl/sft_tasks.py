"""A dozen questions with their right answers, and wrong answers that the model also knows."""

from __future__ import annotations

from typing import Any

__all__ = ["TASKS", "messages_of"]

_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Peru": "Lima",
    "Kenya": "Nairobi", "Norway": "Oslo", "Cuba": "Havana", "Iran": "Tehran",
    "Ghana": "Accra", "Nepal": "Kathmandu", "Chile": "Santiago", "Latvia": "Riga",
}  # fmt: skip
_CITIES = list(_CAPITALS.values())


def _task(number: int, country: str, capital: str) -> dict[str, Any]:
    wrong = [_CITIES[(number + step) % len(_CITIES)] for step in (1, 4, 7)]
    return {
        "question": f"What is the capital of {country}?",
        "answer": capital,
        "choices": [capital, *wrong],
    }


TASKS = [_task(n, country, capital) for n, (country, capital) in enumerate(_CAPITALS.items())]


def messages_of(question: str) -> list[dict[str, Any]]:
    """Return the messages that ask a question."""
    return [{"role": "user", "content": question}]
