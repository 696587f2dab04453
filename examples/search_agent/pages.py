"""The pages and the questions: facts that no model knows, since they are drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any, Literal, NamedTuple

__all__ = ["Page", "Split", "make_pages", "make_questions"]

Split = Literal["train", "test"]

_FIRST = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Felix", "Greta", "Hugo", "Ines", "Jonas")
_LAST = ("Abel", "Brand", "Castell", "Dorn", "Ebner", "Falk", "Grau", "Hauser")
_FRONT = ("Al", "Bir", "Cor", "Dun", "Eis", "Fal", "Gor", "Hol", "Il", "Kar")
_BACK = ("berg", "dal", "feld", "ham", "ley", "mar", "stad", "wick")
_TRADES = ("Mills", "Optics", "Ceramics", "Clocks", "Textiles")
_TEST_COMPANIES = 10


class Page(NamedTuple):
    title: str
    text: str


def make_pages() -> list[Page]:
    """Return 80 people, 80 towns and 40 companies; each page has links to others by name."""
    world = _World()
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


def make_questions(count: int, split: Split = "test", seed: int = 0) -> list[dict[str, Any]]:
    """Return questions whose answers are one, two or three pages away, in equal numbers.

    Args:
        count: How many.
        split: Which companies they are about. Questions of the two need no page in common.
        seed: Seed of the choice among these companies; the facts are always the same.
    """
    world = _World()
    names = list(world.companies)
    chosen = names[:_TEST_COMPANIES] if split == "test" else names[_TEST_COMPANIES:]
    rng = Random(seed)
    questions: list[dict[str, Any]] = []
    for number in range(count):
        company = rng.choice(chosen)
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

    def __init__(self) -> None:
        rng = Random(0)
        towns = [front + back for front in _FRONT for back in _BACK]
        names = [f"{first} {last}" for first in _FIRST for last in _LAST]
        companies = [f"{last} {trade}" for last in _LAST for trade in _TRADES]
        # Nobody leads two companies or shares a birthplace, so that the splits share no page.
        births = rng.sample(towns, len(names))
        heads = rng.sample(names, len(companies))
        rng.shuffle(companies)
        self.towns = {town: f"{rng.choice(_FRONT)}{rng.choice('aeiou')}" for town in towns}
        self.people = {
            name: (birth, rng.choice([town for town in towns if town != birth]))
            for name, birth in zip(names, births, strict=True)
        }
        self.companies = {
            company: (head, rng.randrange(20, 900))
            for company, head in zip(companies, heads, strict=True)
        }
