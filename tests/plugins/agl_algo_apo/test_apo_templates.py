"""Placeholders that must survive, wrappings that must not, and questions of one's own."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from agl_algo_apo.templates import PromptFiles, find_mistake, placeholders, unwrap
from agl_core.errors import ConfigError
from agl_core.types import PromptTemplate


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
        ],
    )
    def test_an_edit_keeps_them(self, text, engine, mistake):
        assert find_mistake(template(text, engine), frozenset({"a", "b"})) == mistake

    def test_a_malformed_edit_is_told(self):
        mistake = find_mistake(template("{a"), frozenset({"a"}))
        assert mistake == "the edit is no f-string template: expected '}' before end of string"


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
def test_only_a_wrapping_around_everything_is_taken_off(text, bare):
    assert unwrap(text) == bare


EXPERIMENT = {
    "status": "failed",
    "final_reward": None,
    "messages": [],
    "conversation": "user: [system]\n[user] {x} {{ y }}",
    "feedback": ["said so"],
    "spans": [{"name": "chat", "status": "ERROR", "attributes": {"k": "v"}}],
}


class TestPromptFiles:
    def test_there_are_three_questions_for_critiques_and_two_for_edits(self):
        prompts = PromptFiles()
        assert len(prompts.variants("gradient")) == 3
        assert len(prompts.variants("edit")) == 2

    def test_what_is_filled_in_stays_as_it_is(self):
        prompts = PromptFiles()
        values = {"prompt_template": "Say {x} {{ y }}\n[user]\n<b>", "experiments": [EXPERIMENT]}
        for variant in range(3):
            system, user = prompts.render("gradient", variant, **values)
            assert (system["role"], user["role"]) == ("system", "user")
            assert values["prompt_template"] in user["content"]
            assert 'status="failed"' in user["content"]

    def test_a_folder_replaces_the_questions_it_has(self, tmp_path: Path):
        (tmp_path / "edit.jinja").write_text("[user]\nMend {{ prompt_template }}: {{ critique }}")
        prompts = PromptFiles(tmp_path)
        assert prompts.variants("edit") == ["edit.jinja"]
        assert len(prompts.variants("gradient")) == 3
        messages = prompts.render("edit", 0, prompt_template="{x}", critique="no", experiments=[])
        assert messages == [{"role": "user", "content": "Mend {x}: no"}]

    def test_a_copy_of_the_packaged_ones_works(self, tmp_path: Path):
        for file in (files("agl_algo_apo") / "prompts").iterdir():
            (tmp_path / file.name).write_text(file.read_text())
        assert PromptFiles(tmp_path).variants("gradient") == PromptFiles().variants("gradient")
        shutil.rmtree(tmp_path)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("other.jinja", "[user]\nHi", "neither"),
            ("edit.jinja", "Hi", "must begin with a line"),
            ("edit.jinja", "[system]\nHi", "must begin with a line"),
            ("edit.jinja", "Hi\n[user]\nHi", "must begin with a line"),
            ("edit.jinja", "[user]\n{{ prompt }}", "'prompt' is undefined"),
            ("edit.jinja", "[user]\n{% for %}", "edit.jinja: "),
        ],
    )
    def test_a_mistake_is_told_before_the_run(self, tmp_path: Path, name, content, message):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=message):
            PromptFiles(tmp_path)
