"""Placeholders that an edit must keep, and wrappings that are removed from it."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.types import PromptTemplate
from agl_prompt_search import find_mistake, placeholders, unwrap


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


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("  plain {x}\n", "plain {x}"),
        ("```\nplain\n```", "plain"),
        ("```text\nplain\n```\n", "plain"),
        ("<prompt_template>\nplain\n</prompt_template>", "plain"),
        ("<new_prompt>plain</new_prompt>", "plain"),
        ("```\na\n```\nor\n```\nb\n```", "```\na\n```\nor\n```\nb\n```"),
        ("Use ```sh``` here", "Use ```sh``` here"),
        ("<b>plain</b>", "<b>plain</b>"),
    ],
)
def test_only_a_wrapping_around_the_whole_prompt_is_removed(text, bare):
    assert unwrap(text) == bare
