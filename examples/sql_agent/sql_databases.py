"""Generates three SQLite databases from a seed, and runs read-only queries on them.

The files are made once, in a folder of the system's temporary directory, and opened read-only.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["DATABASES", "QueryError", "database", "run_query", "schema_of", "words"]

_SEED = 2026
_MAX_ROWS = 1000
_SECONDS = 2.0  # for one query
_STEPS = 10_000  # instructions of SQLite's virtual machine between two checks of the time
_making = threading.Lock()

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
_READING |= {sqlite3.SQLITE_RECURSIVE}

CITIES = ("Bern", "Cork", "Lyon", "Oslo", "Turin")
CATEGORIES = ("books", "games", "garden", "kitchen")
PRODUCTS = (
    "lamp",
    "kettle",
    "puzzle",
    "rake",
    "atlas",
    "pan",
    "chess set",
    "spade",
    "novel",
    "bowl",
)
PEOPLE = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fay", "Goran", "Hana", "Ivo", "Jun", "Kaja", "Lev")
COUNTRIES = ("Chile", "Ghana", "India", "Norway")
AUTHORS = ("A. Bello", "C. Dahl", "E. Fuentes", "G. Haas", "I. Joshi", "K. Lund")
TITLES = (
    "Low Tide", "The Ferry", "Salt", "Nine Doors", "Harvest", "Glass Hours", "The Long Field",
    "Winter Road", "Paper Boats", "Red Clay", "Signal", "The Orchard", "Undertow", "Blue Hour",
)  # fmt: skip
COURSES = {"algebra": "Noor", "biology": "Perez", "drawing": "Okoye", "history": "Quist"}


class QueryError(Exception):
    """A query did not run; the message is for the author of the query."""


def words() -> dict[str, tuple[str, ...]]:
    """Return the words that fill question templates, by kind."""
    return {
        "city": CITIES,
        "category": CATEGORIES,
        "product": PRODUCTS,
        "country": COUNTRIES,
        "author": AUTHORS,
        "course": tuple(COURSES),
        "n": ("1", "2", "3", "4", "5", "6"),
        "points": ("40", "50", "55", "60", "65", "70", "75", "80"),
        "year": ("1", "2", "3"),
    }


def _shop(connection: sqlite3.Connection, dice: Random) -> None:
    connection.executescript(
        """
        CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
        CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price INTEGER);
        CREATE TABLE orders (
            id INTEGER PRIMARY KEY,
            customer_id INTEGER REFERENCES customers (id),
            product_id INTEGER REFERENCES products (id),
            quantity INTEGER
        );
        """
    )
    customers = [(n, name, dice.choice(CITIES)) for n, name in enumerate(PEOPLE, 1)]
    products = [
        (n, name, dice.choice(CATEGORIES), dice.randint(300, 9900))
        for n, name in enumerate(PRODUCTS, 1)
    ]
    orders = [
        (n, dice.randint(1, len(customers)), dice.randint(1, len(products)), dice.randint(1, 5))
        for n in range(1, 121)
    ]
    connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
    connection.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)


def _library(connection: sqlite3.Connection, dice: Random) -> None:
    connection.executescript(
        """
        CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
        CREATE TABLE books (
            id INTEGER PRIMARY KEY,
            title TEXT,
            author_id INTEGER REFERENCES authors (id),
            pages INTEGER
        );
        CREATE TABLE loans (
            id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES books (id), member TEXT
        );
        """
    )
    authors = [(n, name, dice.choice(COUNTRIES)) for n, name in enumerate(AUTHORS, 1)]
    pages = dice.sample(range(80, 700), len(TITLES))
    books = [
        (n, title, (n - 1) % len(authors) + 1, pages[n - 1]) for n, title in enumerate(TITLES, 1)
    ]
    loans = [(n, dice.randint(1, len(books) - 3), dice.choice(PEOPLE)) for n in range(1, 61)]
    connection.executemany("INSERT INTO authors VALUES (?, ?, ?)", authors)
    connection.executemany("INSERT INTO books VALUES (?, ?, ?, ?)", books)
    connection.executemany("INSERT INTO loans VALUES (?, ?, ?)", loans)


def _school(connection: sqlite3.Connection, dice: Random) -> None:
    connection.executescript(
        """
        CREATE TABLE students (id INTEGER PRIMARY KEY, name TEXT, year INTEGER);
        CREATE TABLE courses (id INTEGER PRIMARY KEY, title TEXT, teacher TEXT);
        CREATE TABLE grades (
            student_id INTEGER REFERENCES students (id),
            course_id INTEGER REFERENCES courses (id),
            points INTEGER,
            PRIMARY KEY (student_id, course_id)
        );
        """
    )
    students = [(n, name, dice.randint(1, 3)) for n, name in enumerate(PEOPLE, 1)]
    courses = [(n, title, teacher) for n, (title, teacher) in enumerate(COURSES.items(), 1)]
    grades = [
        (student, course, dice.randint(20, 100))
        for student, *_ in students
        for course, *_ in courses
        if dice.random() < 0.7
    ]
    connection.executemany("INSERT INTO students VALUES (?, ?, ?)", students)
    connection.executemany("INSERT INTO courses VALUES (?, ?, ?)", courses)
    connection.executemany("INSERT INTO grades VALUES (?, ?, ?)", grades)


DATABASES: dict[str, Callable[[sqlite3.Connection, Random], None]] = {
    "shop": _shop,
    "library": _library,
    "school": _school,
}
"""Functions that fill each database."""


def database(name: str) -> Path:
    """Return the file of a database, created if missing; safe for concurrent callers."""
    with _making:
        return _file(name)


@cache
def _file(name: str) -> Path:
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"agl-sql-agent-{os.getuid()}-{source}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.db"
    if not path.exists():
        unfinished = folder / f"{name}-{os.getpid()}.part"
        unfinished.unlink(missing_ok=True)
        with closing(sqlite3.connect(unfinished)) as connection:
            DATABASES[name](connection, Random(f"{_SEED} {name}"))
            connection.commit()
        unfinished.replace(path)
    return path


def _open(name: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{database(name).as_uri()}?mode=ro", uri=True)


def schema_of(name: str) -> str:
    """Return the statements that made a database's tables."""
    with closing(_open(name)) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
        return "\n".join(" ".join(sql.split()) + ";" for (sql,) in rows)


def run_query(name: str, sql: str) -> list[tuple[Any, ...]]:
    """Run one read-only query; return its rows.

    Raises:
        QueryError: The query fails, writes, takes too long, or returns too many rows.
    """
    deadline = time.monotonic() + _SECONDS
    with closing(_open(name)) as connection:
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
        )
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            rows = connection.execute(sql).fetchmany(_MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryError(str(error)) from None
    if len(rows) > _MAX_ROWS:
        raise QueryError(f"more than {_MAX_ROWS} rows")
    return rows
