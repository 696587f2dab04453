"""Arithmetic, tasks, rewards, and the simulated model; without MCP."""

from __future__ import annotations

import json
import sys
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import agl_core as agl
from calc_model import endpoint_of, simulate
from calc_tasks import grade, make_tasks, train_tasks, val_tasks
from calculator import calculate

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "calc_agent"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        (" (22 - 4) * 14 ", "252"),
        ("1/3*3", "1"),
        ("1/3", "0.3333333333"),
        ("0.1 + 0.2", "0.3"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("7 // 2 % 2", "1"),
        ("+5", "5"),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +", "is not an arithmetic expression"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("__import__('os')", "only numbers"),
        ("a + 1", "only numbers"),
        ("True + 1", "only numbers"),
        ("'a' * 9", "only numbers"),
        ("9**9**9", "an exponent must be"),
        ("2**0.5", "an exponent must be"),
        ("10**50", "more than 50 digits"),
        ("(" * 150, "is not an arithmetic expression"),
        ("1" * 201, "longer than 200 characters"),
    ],
)
def test_invalid_expressions_are_refused(expression, message):
    with pytest.raises(ValueError, match=message):
        calculate(expression)


@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 99)), min_size=1, max_size=8))
def test_it_agrees_with_exact_arithmetic(steps):
    expression = "1" + "".join(f" {op} {number}" for op, number in steps)
    exact = eval("Fraction(1)" + "".join(f" {op} Fraction({n})" for op, n in steps))
    assert float(calculate(expression)) == pytest.approx(float(exact), rel=1e-9)
    assert isinstance(exact, Fraction)


def test_equal_seeds_give_equal_tasks_and_other_seeds_other_tasks():
    assert make_tasks(8, 1) == make_tasks(8, 1)
    train, held_out = train_tasks(), val_tasks()
    assert (len(train), len(held_out)) == (64, 32)
    assert not {t["question"] for t in train} & {t["question"] for t in held_out}


def test_rewards():
    task = {"answer": 1234}
    for said, reward in (
        ("Answer: 1234", 1.0),
        ("so\n**Answer: 1,234**.", 1.0),
        ("Answer: 1\nanswer:1234.0", 1.0),
        ("Answer: 1234\nAnswer: 5", 0.0),
        ("1234", 0.0),
        ("Answer: -1234", 0.0),
        ("", 0.0),
    ):
        assert grade(task, said) == reward, said


def ask(question: str, *more: dict[str, Any], seed: int = 0) -> Any:
    messages = [{"role": "user", "content": question}, *more]
    return simulate({"messages": messages, "tools": [{}], "seed": seed})


def test_most_formulas_of_the_simulated_model_are_right():
    tasks = make_tasks(400, 7)
    tried = right = 0
    for task in tasks:
        reply = ask(task["question"])
        if reply.tool_calls:
            tried += 1
            right += float(calculate(reply.tool_calls[0].arguments["expression"])) == task["answer"]
    assert 0.8 < tried / len(tasks) < 0.9
    assert 0.8 < right / tried < 0.9
    assert ask(tasks[0]["question"]) == ask(tasks[0]["question"])


def test_the_simulated_model_reads_results():
    result = {"role": "tool", "content": "252"}
    assert grade({"answer": 252}, ask("boxes 1 2 3", result).text) == 1.0
    assert "could not" in ask("boxes 1 2 3", {"role": "tool", "content": "error: no"}).text
    assert "only know" in ask("What is love?").text


def test_environment_variables_select_the_model(monkeypatch):
    llm = agl.LLM(endpoint="environment", model="environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1")
    monkeypatch.setenv("OPENAI_MODEL", "m")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert endpoint_of(llm) == ("http://h/v1", "m", "none")
    given_one = agl.LLM(endpoint="http://proxy/v1", model="qwen", api_key="k")
    assert endpoint_of(given_one) == ("http://proxy/v1", "qwen", "k")


@pytest.mark.parametrize(
    ("file", "plugin", "config"),
    [("grpo.toml", "agl_algo_grpo", "GRPOConfig"), ("verl.toml", "agl_algo_verl", "VERLConfig")],
)
def test_the_files_for_training_fit_their_plugins(monkeypatch, file, plugin, config):
    monkeypatch.syspath_prepend(str(ROOT / "plugins" / plugin / "src"))
    content = tomllib.loads((EXAMPLE / file).read_text())
    if plugin == "agl_algo_grpo":  # it refuses the trainer's default, triplet
        assert content["adapter"] == "trajectory"
    options = content["algorithm"]
    del options["type"]
    module = __import__(f"{plugin}.config", fromlist=[config])
    read = getattr(module, config).model_validate(options)
    assert json.loads(read.model_dump_json())
    assert "torch" not in sys.modules
