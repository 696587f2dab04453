"""Placeholders that an edit must keep, and braces that hold none."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.types import PromptTemplate
from agl_prompt_search import EditRules, find_mistake, placeholders


def template(text: str, engine: Any = "f-string") -> PromptTemplate:
    return PromptTemplate(template=text, engine=engine)


class TestPlaceholders:
    @pytest.mark.parametrize(
        ("text", "engine", "names"),
        [
            ("no names", "f-string", set()),
            ("{a} and {b:>{width}} and {{c}}", "f-string", {"a", "b", "width"}),
            ("{a.b} {c[0]} {d!r}", "f-string", {"a.b", "c[0]", "d"}),
            ("{{ a }} {% for x in b %}{{ x }}{% endfor %}", "jinja", {"a", "b"}),
            ("<p>{{ a }}</p>", "poml", set()),
        ],
    )
    def test_names_are_found(self, text, engine, names):
        assert placeholders(template(text, engine)) == names

    @pytest.mark.parametrize(
        ("text", "engine"), [("{", "f-string"), ("}", "f-string"), ("{{ a", "jinja")]
    )
    def test_a_malformed_template_is_refused(self, text, engine):
        with pytest.raises(ValueError):
            placeholders(template(text, engine))

    @pytest.mark.parametrize(
        ("text", "engine", "mistake"),
        [
            ("{a} {b}", "f-string", ""),
            ("{b}{a}{a}", "f-string", ""),
            ("{a}", "f-string", "the edit lost the placeholders b"),
            ("{a} {b} {c}", "f-string", "the edit has placeholders without values: c"),
            ("{{ a }} {{ b }}", "jinja", ""),
            ("{{ a }}", "jinja", "the edit lost the placeholders b"),
            ("anything", "poml", ""),
            ("", "f-string", "no edit: the answer is empty"),
            (" \n", "poml", "no edit: the answer is empty"),
        ],
    )
    def test_an_edit_must_keep_the_placeholders(self, text, engine, mistake):
        assert find_mistake(template(text, engine), frozenset({"a", "b"})) == mistake

    def test_a_malformed_edit_is_reported(self):
        mistake = find_mistake(template("{a"), frozenset({"a"}))
        assert (
            mistake
            == "the edit is not a valid f-string template: expected '}' before end of string"
        )


SEED = template("Answer {question} of {user} well")


class TestEdits:
    """How a model's reply becomes an edit of the seed."""

    def test_braces_without_a_placeholder_are_escaped(self):
        rules = EditRules.of(SEED)
        for reply in (
            'As {"answer": {"a": [1, 2]}}: {question} {user}',
            "A set {1, 2}, an empty {}, a lone } and {: {question} {user}",
            "\\frac{1}{2} {question} {user}",
        ):
            text, mistake = rules.read(reply, SEED.template)
            assert not mistake
            filled = template(text).format(question="Q", user="U")
            assert filled == reply.replace("{question}", "Q").replace("{user}", "U")

    def test_what_is_right_stays(self):
        rules = EditRules.of(SEED)
        for reply in ("{question!r:>4} {user} {{x}}", '{question} {user} {{"a": 1}}'):
            assert rules.read(reply, SEED.template) == (reply, "")

    def test_double_braces_of_jinja_become_placeholders(self):
        text, mistake = EditRules.of(SEED).read("{{ question }} and {{user}}", SEED.template)
        assert (text, mistake) == ("{question} and {user}", "")

    def test_a_made_up_placeholder_is_a_mistake(self):
        _, mistake = EditRules.of(SEED).read('{question} {user} {mood} {"a": 1}', SEED.template)
        assert mistake == 'the edit has placeholders without values: "a", mood'

    def test_seed_whose_agent_fills_it_in_by_itself(self):
        """``format`` could not fill this seed, so its braces are text."""
        rules = EditRules.of(template('Answer {question} as {"answer": "..."}'))
        assert (rules.names, rules.literal) == ({"question"}, True)
        edit = '{question}: {"answer": 1, "why": {"x": }} {'
        assert rules.read(edit, "") == (edit, "")
        assert rules.read("nothing", "")[1] == "the edit lost the placeholders question"
        assert rules.read(" ", "")[1] == "no edit: the answer is empty"
