"""The simulated model: the instructions that it understands, and the rules that it follows."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agent import SEED_PROMPT, TOOLS, list_rooms
from simulated_model import MODEL_NAME, SimulatedModel
from simulated_model.booker import book, read_request, resolve_day
from simulated_model.editor import find_prompt, what_is_asked
from simulated_model.rules import HARMFUL, RULES, USELESS, followed
from solver import grade
from tasks import BookingTask, generate

COUNT = 400
ADVICE = {rule.name: rule.advice[0] for rule in RULES}
FULL_PROMPT = "\n".join([SEED_PROMPT, *ADVICE.values()])


@cache
def many_tasks() -> list[BookingTask]:
    return generate(COUNT, seed=11)


def accuracy(prompt: str, slip: float = 0.0, tasks: int = COUNT) -> float:
    """Return the model's mean reward with this prompt, without the HTTP protocol."""
    total = 0.0
    for task in many_tasks()[:tasks]:
        listed = list_rooms(task, json.dumps({"date": task.needs.day.isoformat()}))
        answer = book(prompt, task.request, json.loads(listed)["rooms"], seed=0, slip=slip)
        total += grade(task, answer)[0]
    return total / tasks


def ask(model: SimulatedModel, system: str, user: str, **more: Any) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return model.reply({"model": MODEL_NAME, "messages": messages, **more})["content"]


# -- booking ---------------------------------------------------------------------------------------


def test_understands_every_wording_of_the_generator():
    for task in many_tasks():
        needs, heard = task.needs, read_request(task.request)
        assert (heard.start, heard.end, heard.people) == (needs.start, needs.end, needs.attendees)
        assert heard.equipment == set(needs.equipment)
        assert heard.accessible == needs.accessible
        assert resolve_day(task.request, f"Today is {task.today}.") == needs.day


def test_is_perfect_only_with_all_rules():
    assert accuracy(FULL_PROMPT) == 1.0
    assert accuracy(SEED_PROMPT) < 0.25
    assert 0.85 < accuracy(FULL_PROMPT, slip=0.02) < 1.0


@pytest.mark.parametrize("name", sorted(ADVICE))
def test_every_rule_is_worth_learning(name: str):
    without = "\n".join(advice for other, advice in ADVICE.items() if other != name)
    # "Free to the end" includes "free at the start", so the second rule alone is not enough.
    if name == "free at the start":
        assert accuracy(without) == 1.0
    else:
        assert accuracy(without) < 0.99


def test_each_further_rule_raises_the_score():
    """The score has no plateau for a search that keeps the best of a few edits."""
    prompt, scores = SEED_PROMPT, [accuracy(SEED_PROMPT, tasks=150)]
    left = set(ADVICE) - followed(SEED_PROMPT)
    while left:
        options = {f"{prompt}\n{ADVICE[name]}" for name in left}
        scored = {option: accuracy(option, tasks=150) for option in sorted(options)}
        prompt = max(scored, key=lambda option: scored[option])
        scores.append(scored[prompt])
        left -= followed(prompt)
    gains = [after - before for before, after in pairwise(scores)]
    assert min(gains) > 0.01
    assert scores[-1] == 1.0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_advice_teaches_its_rule(rule):
    for advice in rule.advice:
        assert rule.name in followed(advice)
    assert followed("\n".join(USELESS)) == frozenset()


@pytest.mark.parametrize("sentence", HARMFUL)
def test_harmful_edits_harm_a_good_prompt(sentence: str):
    assert accuracy(f"{FULL_PROMPT}\n{sentence}") < 0.95
    assert followed(f"{sentence}\n{FULL_PROMPT}") == set(ADVICE)  # later sentences win


@given(st.text(alphabet="abcdefghij {}.\n", max_size=60), st.integers(0, 3))
def test_equal_requests_get_equal_answers(noise: str, seed: int):
    rooms = json.loads(list_rooms(many_tasks()[0], '{"date": "2026-01-05"}'))["rooms"]
    answers = {book(noise, many_tasks()[0].request, rooms, seed=seed, slip=0.5) for _ in range(3)}
    assert len(answers) == 1


def test_without_todays_date_relative_days_are_guessed():
    task = next(task for task in many_tasks() if "tomorrow" in task.request)
    messages = [
        {"role": "system", "content": "You book rooms."},
        {"role": "user", "content": task.request},
    ]
    call = SimulatedModel().reply({"messages": messages, "tools": TOOLS})["tool_calls"][0]
    assert json.loads(call["function"]["arguments"])["date"] != task.needs.day.isoformat()


def test_reports_a_failed_tool_call():
    messages = [
        {"role": "system", "content": FULL_PROMPT},
        {"role": "user", "content": many_tasks()[0].request},
        {"role": "tool", "tool_call_id": "c", "content": '{"error": "no such date"}'},
    ]
    reply = SimulatedModel().reply({"messages": messages, "tools": TOOLS})
    assert reply["content"] == "I cannot see any rooms, so I cannot book one."


# -- editing ---------------------------------------------------------------------------------------

EDITOR = "You improve prompts. Change one thing. Return only the new prompt."


def test_edits_add_one_sentence_and_keep_the_rest():
    model = SimulatedModel(seed=1)
    question = f"<prompt>\n{SEED_PROMPT}\n</prompt>\nfeedback: R01 lacks equipment: phone."
    edits = [ask(model, EDITOR, question) for _ in range(60)]
    for edited in edits:
        assert edited.startswith(SEED_PROMPT + "\n")
        assert edited.count("\n") == 1
    added = [edited.removeprefix(SEED_PROMPT + "\n") for edited in edits]
    useful = [one for one in added if one not in (*USELESS, *HARMFUL)]
    assert 0.5 < len(useful) / len(added) < 0.85
    assert any(one in HARMFUL for one in added)
    about_equipment = [one for one in useful if "equipment" in followed(one)]
    other = len(useful) - len(about_equipment)
    assert len(about_equipment) > other / 3  # the hint counts: seven rules are missing


def test_edits_follow_a_critique():
    model = SimulatedModel(seed=2)
    rule = next(rule for rule in RULES if rule.name == "no room")
    question = f"<prompt>{SEED_PROMPT}</prompt>\n<critique>\n- {rule.critique}\n</critique>"
    edits = [ask(model, "Apply the critique.", question) for _ in range(60)]
    assert sum("no room" in followed(edited) for edited in edits) > 30


def test_edits_may_add_two_rules_unless_asked_for_one():
    model = SimulatedModel(seed=4)
    question = f"<prompt>{SEED_PROMPT}</prompt>"
    added = {
        ask(model, "Return the new prompt.", question).removeprefix(SEED_PROMPT).count("\n")
        for _ in range(30)
    }
    assert added == {1, 2}


def test_critiques_name_what_is_missing():
    model = SimulatedModel(seed=3)
    question = f"# Prompt\n\n{SEED_PROMPT}\n\n# Results\n\nfeedback: R01 lacks equipment: phone."
    critiques = [ask(model, "Write a critique in a few bullets.", question) for _ in range(30)]
    text = "\n".join(critiques)
    missing = {rule.name for rule in RULES if rule.critique in text}
    assert "equipment" in missing
    assert not missing & followed(SEED_PROMPT)
    assert all(line.startswith("- ") for line in text.splitlines())


def test_repeated_questions_vary_unless_seeded():
    question = f"<prompt>{SEED_PROMPT}</prompt>"
    model, again = SimulatedModel(), SimulatedModel()
    draws = [ask(model, EDITOR, question) for _ in range(8)]
    assert len(set(draws)) > 2
    assert [ask(again, EDITOR, question) for _ in range(8)] == draws
    assert len({ask(model, EDITOR, question, seed=5) for _ in range(4)}) == 1


def test_finished_prompts_get_nothing_useful():
    model = SimulatedModel()
    edited = {ask(model, EDITOR, f"<prompt>{FULL_PROMPT}</prompt>") for _ in range(20)}
    added = {one.removeprefix(FULL_PROMPT).strip() for one in edited}
    assert added <= {*USELESS, *HARMFUL}


@pytest.mark.parametrize(
    "text",
    [
        "<prompt>\nBook. {today}\n</prompt>",
        "<curr_instructions>Book. {today}</curr_instructions>",
        "I gave these instructions:\n```\nBook. {today}\n```\nFeedback:\n```\nbad\n```",
        "# Original Prompt\n\nBook. {today}\n\n# Critique\n\nBad.",
    ],
)
def test_finds_the_prompt_in_usual_layouts(text: str):
    assert find_prompt(text) == "Book. {today}"


def test_answers_in_a_fence_on_request():
    user = f"```\n{SEED_PROMPT}\n```\nProvide the new instructions within ``` blocks."
    reply = ask(SimulatedModel(), "", user)
    assert reply.startswith(f"```\n{SEED_PROMPT}\n")
    assert reply.endswith("\n```")


@pytest.mark.parametrize(
    ("system", "user", "kind"),
    [
        ("Return only the revised prompt.", "<prompt>x</prompt>", "edit"),
        ("Write a critique.", "<prompt>Return the new prompt.</prompt>", "critique"),
        ("Critique it. Do not rewrite the prompt.", "<prompt>x</prompt>", "critique"),
        ("", "What is the capital of France?", "other"),
    ],
)
def test_recognises_the_kind_of_a_request(system: str, user: str, kind: str):
    assert what_is_asked(system, user) == kind
