"""Reads the code blocks of a documentation page.

The first words of a fence say what happens to the block:

* ```` ```python file=agent.py ```` (any language) is written to that file;
* ```` ```python ```` is a program;
* ```` ```sh ```` is typed into a shell;
* ```` ```sh serves ```` holds commands that run until Ctrl+C, each on its own;
* ```` ```console ```` has commands, which start with ``$``, and below each the lines that its
  output must contain, in that order; ``...`` matches anything;
* a fence with ``heavy`` is executed by the heavy tests, in the environment of its libraries;
* a fence whose words end in ``norun`` only illustrates: it needs another machine or costs money.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w+)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    """A line of a console, and what its output must contain."""

    text: str
    expected: str

    def matches(self, output: str) -> bool:
        lines = [re.escape(line.strip()) for line in self.expected.split("\n")]
        wanted = [line.replace(r"\.\.\.", ".*") for line in lines if line]
        return re.search(".*".join(wanted), output, re.DOTALL) is not None


@dataclass(frozen=True)
class Block:
    """A code block that is executed."""

    language: str
    words: list[str]
    text: str

    @property
    def file(self) -> str | None:
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), None)

    def write(self, folder: Path) -> None:
        """Write a block with a file name below a folder."""
        target = folder / str(self.file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.text)

    def commands(self) -> Iterator[Command]:
        """Yield the commands of a console."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            text, _, expected = part.partition("\n")
            yield Command(text, expected)


def blocks_of(page: Path, *, heavy: bool = False) -> list[Block]:
    """Return the blocks of a page that are executed, in order.

    Args:
        page: The Markdown file.
        heavy: Return those that the heavy tests execute, in place of all others.
    """
    found = [Block(m[1], m[2].split(), m[3]) for m in FENCE.finditer(page.read_text())]
    return [b for b in found if "norun" not in b.words and ("heavy" in b.words) == heavy]
