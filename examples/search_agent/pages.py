"""The pages and the questions: facts that no model knows, since they are drawn from a seed."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

__all__ = ["Page", "make_pages", "make_questions"]

_FIRST = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Felix", "Greta", "Hugo", "Ines", "Jonas")
_LAST = ("Abel", "Brand", "Castell", "Dorn", "Ebner", "Falk", "Grau", "Hauser")
_FRONT = ("Al", "Bir", "Cor", "Dun", "Eis", "Fal", "Gor", "Hol", "Il", "Kar")
_BACK = ("berg", "dal", "feld", "ham", "ley", "mar", "stad", "wick")
_TRADES = ("Mills", "Optics", "Ceramics", "Clocks")


class Page(NamedTuple):
    title: str
    text: str


def make_pages(seed: int = 0) -> list[Page]:
    """Return 80 people, 80 towns and 40 companies; each page has links to others by name."""
    world = _World(seed)
    people = [
        Page(name, f"{name} was born in {town} and studied in {other}.")
        for name, (town, other) in world.people.items()
    ]
    towns = [
        Page(name, f"{name} is a town on the river {river}. It is known for its market.")
        for name, river in world.towns.items()
    ]
    companies = [
        Page(name, f"{name} is a company of {size} people. It is led by {head}.")
        for name, (head, size) in world.companies.items()
    ]
    return people + towns + companies


def make_questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return questions whose answers are one, two or three pages away, in equal numbers."""
    world = _World(seed)
    rng = Random(seed + 1)
    questions: list[dict[str, Any]] = []
    for number in range(count):
        company = rng.choice(list(world.companies))
        head = world.companies[company][0]
        town = world.people[head][0]
        ways = (
            (f"Who leads {company}?", head),
            (f"In which town was the head of {company} born?", town),
            (
                f"On which river lies the town in which the head of {company} was born?",
                world.towns[town],
            ),
        )
        question, answer = ways[number % 3]
        questions.append({"question": question, "answer": answer, "hops": number % 3 + 1})
    return questions


class _World:
    """The facts: birthplaces and places of study, rivers, and heads and sizes of companies."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        towns = [front + back for front in _FRONT for back in _BACK]
        names = [f"{first} {last}" for first in _FIRST for last in _LAST]
        companies = [f"{last} {trade}" for last in _LAST for trade in _TRADES]
        companies += [f"{last} Textiles" for last in _LAST]
        self.towns = {town: f"{rng.choice(_FRONT)}{rng.choice('aeiou')}" for town in towns}
        self.people = {name: tuple(rng.sample(towns, 2)) for name in names}
        self.companies = {c: (rng.choice(names), rng.randrange(20, 900)) for c in companies}
