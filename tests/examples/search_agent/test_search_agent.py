"""The index, the questions, and the two agents on the simulated model."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_scripted import SeenRequest, real_or_scripted
from index import Index
from pages import Page, Split, make_pages, make_questions
from search_agent import client, exact_match, index as shared_index, result_of
from search_model import answer

MAIN = Path(__file__).parents[3] / "examples" / "search_agent" / "main.py"


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    client().close()
    shared_index().close()
    shared_index.cache_clear()


@pytest.fixture
def index() -> Iterator[Index]:
    pages = [
        Page("Albmar", "Albmar is a town. Its market sells clocks."),
        Page("Clocks", "How to mend them, in Albmar and elsewhere."),
        Page("Birdal", "Birdal is a village."),
    ]
    made = Index(pages)
    yield made
    made.close()


def test_the_page_of_a_name_comes_before_pages_that_mention_it(index: Index):
    assert [page.title for page in index.search("Albmar")] == ["Albmar", "Clocks"]
    assert [page.title for page in index.search("clocks")] == ["Clocks", "Albmar"]
    assert [page.title for page in index.search("town village", limit=1)] == ["Birdal"]


@pytest.mark.parametrize("query", ["", "?!", 'NOT "', "nothing*", "title:", "absent"])
def test_any_query_is_possible(index: Index, query: str):
    assert index.search(query) == []


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_pages_lead_to_the_answer_of_every_question(split: Split, seed: int):
    pages = "\n".join(page.text for page in make_pages())
    for task in make_questions(30, split, seed):
        messages = [
            {"role": "user", "content": task["question"]},
            {"role": "tool", "content": pages},
        ]
        seen = SeenRequest("/v1/chat/completions", {"messages": messages}, {}, 0)
        assert answer(seen).text == task["answer"]


def test_training_and_test_need_different_pages():
    test, train = (make_questions(900, split) for split in ("test", "train"))
    assert {task["question"] for task in test}.isdisjoint(task["question"] for task in train)
    names = [{task["answer"] for task in tasks if task["hops"] < 3} for tasks in (test, train)]
    assert names[0].isdisjoint(names[1])


def test_questions_are_repeatable():
    assert make_questions(9) == make_questions(9) != make_questions(9, seed=1)


def test_exact_match_ignores_case_and_punctuation_only():
    assert exact_match("the Albmar.", "Albmar") == 1
    assert exact_match("Albmar town", "Albmar") == 0


@pytest.mark.parametrize("arguments", ["", "[]", "{}", '{"words": "x"}'])
def test_a_wrong_tool_call_gets_an_error_text(arguments: str):
    assert result_of(arguments) == "error: search takes one argument, query"


def test_only_searching_often_answers_questions_of_several_hops():
    measure = runpy.run_path(str(MAIN))["measure"]
    questions = make_questions(6)
    with real_or_scripted(answer, "m", environ={}) as model:
        once, often = (
            measure(model, f"{way}", questions) for way in ("retrieve once", "search often")
        )
    assert [row["exact"] for row in once] == [1, 0, 0]
    assert [row["exact"] for row in often] == [1, 1, 1]
    assert [row["searches"] for row in once] == [1, 1, 1]
    assert [row["searches"] for row in often] == [1, 2, 3]
    assert [row["calls"] for row in often] == [2, 3, 4]
    assert [row["failed"] for row in once + often] == [0] * 6


def test_one_question_is_enough():
    measure = runpy.run_path(str(MAIN))["measure"]
    with real_or_scripted(answer, "m", environ={}) as model:
        rows = measure(model, "search often", make_questions(1))
    assert [(row["hops"], row["exact"]) for row in rows] == [(1, 1)]
