"""AGENTS.md names commands, folders and pages that exist."""

from __future__ import annotations

import re
import shlex

import pytest

import dev
from agl_core.plugins import get_registry
from devtools.process import ROOT

PAGE = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`]+)`", PAGE)
LINKS = re.findall(r"\]\(([^)]+)\)", PAGE)
MADE = re.compile(r"[\w./-]*/[\w./-]*|[\w-]+\.(?:md|txt|py|toml)")
"""Code on the page that is a path of a file or a folder."""
NOT_HERE = {"hooks.py"}
"""Names of files that are in each plugin."""


def words_of(program: str) -> list[list[str]]:
    """Return the words after a program, for each command of the page that begins with it."""
    return [shlex.split(code)[len(program.split()) :] for code in CODE if code.startswith(program)]


def test_commands_of_the_repository_exist() -> None:
    found = words_of("python3 dev.py ")
    assert len(found) >= 8
    # A cell lists several commands: "`python3 dev.py packages`, `settings`, `llms`".
    line = next(line for line in PAGE.splitlines() if "`python3 dev.py packages`" in line)
    found += [[name] for name in re.findall(r"`(\w+)`", line)]
    for command, *_ in found:
        assert command in dev.COMMANDS


@pytest.mark.parametrize("program", ["python3 dev.py ", ".venv/bin/python -m pytest "])
def test_what_the_commands_are_given_exists(program: str) -> None:
    paths = [word for words in words_of(program) for word in words if "/" in word]
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), path


def test_commands_of_users_exist() -> None:
    names = {record.name for record in get_registry().usable("command")} | {"plugins"}
    found = words_of("agl ")
    assert {words[0] for words in found} >= {"train", "eval", "plugins", "doctor"}
    for words in found:
        assert words[0] in names


def test_files_folders_and_pages_exist() -> None:
    named = [code for code in CODE if MADE.fullmatch(code) and "<" not in code]
    assert len(named) > 10
    for name in {*named, *LINKS} - NOT_HERE:
        assert (ROOT / name).exists(), name


def test_coding_agents_find_the_rules_of_users_first() -> None:
    assert "docs/assistants.md" in LINKS
    assert PAGE.index("docs/assistants.md") < PAGE.index("python3 dev.py")
