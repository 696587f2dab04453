"""Databases, queries, tasks, rewards and the simulated model; without LangGraph."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import sql_databases
from sql_databases import DATABASES, QueryError, run_query, schema_of
from sql_model import simulate
from sql_tasks import TEMPLATES, all_tasks, grade, train_tasks, val_tasks

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "sql_agent"


@pytest.fixture(autouse=True, scope="module")
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Create the databases in a folder of this test run."""
    folder = str(tmp_path_factory.mktemp("databases"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_databases.tempfile, "gettempdir", lambda: folder)
        sql_databases._file.cache_clear()
        yield
    sql_databases._file.cache_clear()


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_returns_its_schema(name):
    schema = schema_of(name)
    assert schema.count("CREATE TABLE") == 3
    assert sql_databases.database(name).stat().st_size > 0


def test_databases_are_the_same_everywhere(tmp_path):
    code = (
        "import tempfile, sys; tempfile.gettempdir = lambda: sys.argv[1]\n"
        "from sql_databases import run_query\n"
        "print(run_query('shop', 'SELECT SUM(quantity * product_id * customer_id) FROM orders'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=EXAMPLE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    query = "SELECT SUM(quantity * product_id * customer_id) FROM orders"
    assert done.stdout.strip() == str(run_query("shop", query))


def test_every_question_has_a_query_that_finds_something():
    tasks = all_tasks()
    assert len({task["question"] for task in tasks}) == len(tasks) == 83
    found = [run_query(task["database"], task["sql"]) for task in tasks]
    assert not any(rows == [] or rows == [(None,)] for rows in found)
    assert {task["database"] for task in tasks} == set(DATABASES)


def test_held_out_tasks_are_not_training_tasks():
    train, held_out = train_tasks(), val_tasks()
    assert (len(train), len(held_out)) == (59, 24)
    assert not {t["question"] for t in train} & {t["question"] for t in held_out}
    assert all_tasks() == all_tasks()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "DROP TABLE orders",
        "INSERT INTO customers VALUES (99, 'x', 'y')",
        "ATTACH '/etc/passwd' AS x",
        "PRAGMA journal_mode = DELETE",
        "CREATE TEMP TABLE x (y)",
        "SELECT load_extension('x')",
        "SELECT nam FROM customers",
        "SELECT 1; SELECT 2",
        "SELECT '\0'",
        "",
        "not sql",
    ],
)
def test_statements_that_are_not_read_only_queries_are_refused(sql):
    before = run_query("shop", "SELECT COUNT(*) FROM orders")
    if sql:
        with pytest.raises(QueryError):
            run_query("shop", sql)
    else:
        assert run_query("shop", sql) == []
    assert run_query("shop", "SELECT COUNT(*) FROM orders") == before


def test_queries_are_bounded(monkeypatch):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
    with pytest.raises(QueryError, match="more than 1000 rows"):
        run_query("shop", endless.format("i"))
    monkeypatch.setattr(sql_databases, "_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(QueryError, match="interrupted"):
        run_query("shop", endless.format("SUM(i)"))
    assert time.monotonic() - start < 5


def test_rewards_compare_result_rows():
    count = {"database": "shop", "sql": "SELECT COUNT(*) FROM customers"}
    assert grade(count, "SELECT 12") == 1.0
    assert grade(count, "SELECT 12.0000000001") == 1.0
    assert grade(count, "SELECT 11") == 0.0
    assert grade(count, "SELECT 12, 12") == 0.0
    assert grade(count, "SELEC 12") == 0.0
    names = {"database": "shop", "sql": "SELECT name FROM customers"}
    assert grade(names, "SELECT name FROM customers ORDER BY name DESC") == 1.0
    assert grade(names, "SELECT name FROM customers LIMIT 11") == 0.0
    ordered = {"database": "shop", "sql": "SELECT name FROM customers ORDER BY name"}
    assert grade(ordered, "SELECT name FROM customers ORDER BY name DESC") == 0.0
    repeated = {"database": "shop", "sql": "SELECT city FROM customers"}
    assert grade(repeated, "SELECT DISTINCT city FROM customers") == 0.0


def ask(question: str, *more: dict[str, Any], seed: int = 0) -> str:
    messages = [
        {"role": "system", "content": "Write SQL."},
        {"role": "user", "content": f"Tables:\n…\n\nQuestion: {question}"},
        *more,
    ]
    text = simulate({"messages": messages, "seed": seed}).text
    return text.removeprefix("```sql\n").removesuffix("\n```")


def test_the_simulated_model_errs_and_corrects_at_the_stated_rates():
    tasks = [(task, seed) for task in all_tasks() for seed in range(5)]
    complaint = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "no"}]
    first = [grade(task, ask(task["question"], seed=seed)) for task, seed in tasks]
    second = [grade(task, ask(task["question"], *complaint, seed=seed)) for task, seed in tasks]
    assert 0.5 < sum(first) / len(tasks) < 0.75
    assert 0.8 < sum(second) / len(tasks) < 0.95
    assert "only know" in ask("Who are you?")
    assert len(TEMPLATES) == 11


def test_the_file_for_training_fits_its_plugin(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "plugins" / "agl_algo_verl" / "src"))
    options = tomllib.loads((EXAMPLE / "verl.toml").read_text())["algorithm"]
    del options["type"]
    module = __import__("agl_algo_verl.config", fromlist=["VERLConfig"])
    assert module.VERLConfig.model_validate(options).aggregation == "trajectory"
