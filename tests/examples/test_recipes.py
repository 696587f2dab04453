"""Every recipe's one command, as its README gives it: it succeeds and ends with a table."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# They need light packages only, and no minutes. Tests of their own run the other examples.
RECIPES = [
    ROOT / "examples" / name
    for name in (
        "azure_finetune",
        "building_blocks",
        "coding_agent",
        "guarded_runner",
        "search_agent",
        "vision_qa",
        "web_shop",
    )
]
LIMIT_SECONDS = 12 * 60


def command_of(recipe: Path) -> list[str]:
    """Return the first command of the recipe's README that runs its program."""
    page = (recipe / "README.md").read_text()
    (block, *_) = re.findall(r"^```sh\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (line, *_) = [line for line in block.splitlines() if line.startswith("python ")]
    _, program, *arguments = shlex.split(line)
    return [sys.executable, str(ROOT / program), *arguments]


def table_of(output: str) -> list[str]:
    """Return the lines of the table that an output ends with: all after the last empty line."""
    return output.rstrip().rpartition("\n\n")[2].splitlines()


def test_every_recipe_is_listed_and_says_what_it_needs_and_costs():
    listed = (ROOT / "README.md").read_text()
    for recipe in RECIPES:
        assert f"examples/{recipe.name}/README.md" in listed
        page = (recipe / "README.md").read_text()
        assert "**Needs:**" in page, recipe.name
        assert "**Costs:**" in page, recipe.name
        assert Path(command_of(recipe)[1]).is_file()


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS)
def test_every_command_succeeds_and_ends_with_a_table(tmp_path: Path):
    keys = ("OPENAI_", "ANTHROPIC_", "AZURE_", "MODEL")
    simulated = {name: value for name, value in os.environ.items() if not name.startswith(keys)}
    seconds: dict[str, float] = {}
    for recipe in RECIPES:
        started = time.monotonic()
        done = subprocess.run(
            command_of(recipe),
            cwd=tmp_path,
            env=simulated,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds[recipe.name] = time.monotonic() - started
        assert done.returncode == 0, f"{recipe.name}\n{done.stdout}\n{done.stderr}"
        head, *rows = table_of(done.stdout)
        assert len(head.split()) > 1, f"{recipe.name}\n{done.stdout}"
        assert rows, f"{recipe.name}\n{done.stdout}"
        assert "Traceback" not in done.stderr, f"{recipe.name}\n{done.stderr}"
    print("\nrecipe              seconds")
    for name, took in seconds.items():
        print(f"{name:20} {took:6.1f}")
    assert sum(seconds.values()) < LIMIT_SECONDS
