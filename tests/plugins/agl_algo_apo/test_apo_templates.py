"""Packaged prompt files for critic and editor, and a user's own."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from agl_algo_apo.proposals import read_prompts
from agl_core.errors import ConfigError

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
        prompts = read_prompts()
        assert len(prompts.variants("gradient")) == 3
        assert len(prompts.variants("edit")) == 2

    def test_what_is_filled_in_stays_as_it_is(self):
        prompts = read_prompts()
        values = {"prompt_template": "Say {x} {{ y }}\n[user]\n<b>", "experiments": [EXPERIMENT]}
        for variant in range(3):
            system, user = prompts.render("gradient", variant, **values)
            assert (system["role"], user["role"]) == ("system", "user")
            assert values["prompt_template"] in user["content"]
            assert 'status="failed"' in user["content"]

    def test_a_folder_replaces_the_questions_it_has(self, tmp_path: Path):
        (tmp_path / "edit.jinja").write_text("[user]\nMend {{ prompt_template }}: {{ critique }}")
        prompts = read_prompts(tmp_path)
        assert prompts.variants("edit") == ["edit.jinja"]
        assert len(prompts.variants("gradient")) == 3
        messages = prompts.render("edit", 0, prompt_template="{x}", critique="no", experiments=[])
        assert messages == [{"role": "user", "content": "Mend {x}: no"}]

    def test_a_copy_of_the_packaged_ones_works(self, tmp_path: Path):
        for file in (files("agl_algo_apo") / "prompts").iterdir():
            (tmp_path / file.name).write_text(file.read_text())
        assert read_prompts(tmp_path).variants("gradient") == read_prompts().variants("gradient")
        shutil.rmtree(tmp_path)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("other.jinja", "[user]\nHi", "has no gradient"),
            ("edit.jinja", "Hi", "must begin with a line"),
            ("edit.jinja", "[system]\nHi", "must begin with a line"),
            ("edit.jinja", "Hi\n[user]\nHi", "must begin with a line"),
            ("edit.jinja", "[user]\n{{ prompt }}", "'prompt' is undefined"),
            ("edit.jinja", "[user]\n{% for %}", "edit.jinja: "),
        ],
    )
    def test_a_mistake_is_reported_before_the_run(self, tmp_path: Path, name, content, message):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_prompts(tmp_path)
