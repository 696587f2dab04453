"""Questions about the databases, the queries that answer them, and the reward."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from sql_databases import QueryError, run_query, words

__all__ = ["TEMPLATES", "Template", "all_tasks", "grade", "train_tasks", "val_tasks"]

_SEED = 3
_HELD_OUT = 24


@dataclass(frozen=True)
class Template:
    """A kind of question; each ``{name}`` is a placeholder for words of that kind."""

    database: str
    question: str
    sql: str


TEMPLATES = (
    Template(
        "shop",
        "How many customers live in {city}?",
        "SELECT COUNT(*) FROM customers WHERE city = '{city}'",
    ),
    Template(
        "shop",
        "What is the average price of the products in the category {category}?",
        "SELECT AVG(price) FROM products WHERE category = '{category}'",
    ),
    Template(
        "shop",
        "Which customers have ordered a {product}? List each name once.",
        "SELECT DISTINCT c.name FROM customers c JOIN orders o ON o.customer_id = c.id "
        "JOIN products p ON p.id = o.product_id WHERE p.name = '{product}'",
    ),
    Template(
        "shop",
        "Which {n} products have the highest revenue (price times quantity)? List their names, "
        "highest first, equal ones by name.",
        "SELECT p.name FROM products p JOIN orders o ON o.product_id = p.id GROUP BY p.id "
        "ORDER BY SUM(p.price * o.quantity) DESC, p.name LIMIT {n}",
    ),
    Template(
        "library",
        "How many books are by authors from {country}?",
        "SELECT COUNT(*) FROM books b JOIN authors a ON a.id = b.author_id "
        "WHERE a.country = '{country}'",
    ),
    Template(
        "library",
        "What is the title of the longest book by {author}?",
        "SELECT b.title FROM books b JOIN authors a ON a.id = b.author_id "
        "WHERE a.name = '{author}' ORDER BY b.pages DESC LIMIT 1",
    ),
    Template(
        "library",
        "Which books by authors from {country} have never been lent? List their titles.",
        "SELECT b.title FROM books b JOIN authors a ON a.id = b.author_id "
        "WHERE a.country = '{country}' AND b.id NOT IN (SELECT book_id FROM loans)",
    ),
    Template(
        "library",
        "How often was each book by {author} lent? List title and number, by title.",
        "SELECT b.title, COUNT(l.id) FROM books b JOIN authors a ON a.id = b.author_id "
        "LEFT JOIN loans l ON l.book_id = b.id WHERE a.name = '{author}' "
        "GROUP BY b.id ORDER BY b.title",
    ),
    Template(
        "school",
        "What is the average number of points in {course}?",
        "SELECT AVG(g.points) FROM grades g JOIN courses c ON c.id = g.course_id "
        "WHERE c.title = '{course}'",
    ),
    Template(
        "school",
        "Which students have more than {points} points in {course}? List their names.",
        "SELECT s.name FROM students s JOIN grades g ON g.student_id = s.id "
        "JOIN courses c ON c.id = g.course_id WHERE c.title = '{course}' AND g.points > {points}",
    ),
    Template(
        "school",
        "How many students of year {year} take {course}?",
        "SELECT COUNT(*) FROM students s JOIN grades g ON g.student_id = s.id "
        "JOIN courses c ON c.id = g.course_id WHERE s.year = {year} AND c.title = '{course}'",
    ),
)


def all_tasks() -> list[dict[str, Any]]:
    """Return all possible questions with their queries, in random order."""
    tasks: list[dict[str, Any]] = []
    for template in TEMPLATES:
        kinds = dict.fromkeys(re.findall(r"\{(\w+)\}", template.question))
        for chosen in product(*(words()[kind] for kind in kinds)):
            filled = dict(zip(kinds, chosen, strict=True))
            sql = template.sql.format(**filled)
            # A query that finds nothing would answer a question without an answer.
            if run_query(template.database, sql) not in ([], [(None,)]):
                question = template.question.format(**filled)
                tasks.append({"database": template.database, "question": question, "sql": sql})
    Random(_SEED).shuffle(tasks)
    return tasks


def train_tasks() -> list[dict[str, Any]]:
    return all_tasks()[_HELD_OUT:]


def val_tasks() -> list[dict[str, Any]]:
    return all_tasks()[:_HELD_OUT]


def grade(task: dict[str, Any], sql: str) -> float:
    """Return 1.0 if a query returns the same rows as the task's own query, else 0.0.

    Rows are compared as a multiset, or in their order if the task's query orders them (execution
    match, Yu et al. 2018, arXiv:1809.08887).
    """
    wanted = run_query(task["database"], task["sql"])
    try:
        found = run_query(task["database"], sql)
    except QueryError:
        return 0.0
    one, other = ([tuple(map(_plain, row)) for row in rows] for rows in (wanted, found))
    ordered = re.search(r"\border by\b", task["sql"], re.IGNORECASE) is not None
    return float(one == other if ordered else Counter(one) == Counter(other))


def _plain(value: Any) -> Any:
    return round(float(value), 6) if isinstance(value, (int, float)) else value
