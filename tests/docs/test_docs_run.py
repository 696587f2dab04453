"""Every code block of the documentation is executed unchanged.

Each page runs in a folder of its own, from top to bottom. The first words of a fence select what
happens:

* ```` ```python file=agent.py ```` (any language) is written to that file;
* ```` ```python ```` is run, in one process per page;
* ```` ```console ```` runs each line that starts with ``$``, which must succeed; the lines below it
  must appear in its output in that order; ``...`` matches anything.

A fence whose words end in ``norun`` is not executed (it needs another machine or costs money).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])
FENCE = re.compile(r"^```(\w+)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    words: list[str]
    text: str

    @property
    def file(self) -> str | None:
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), None)


def blocks_of(page: Path) -> list[Block]:
    found = [Block(m[1], m[2].split(), m[3]) for m in FENCE.finditer(page.read_text())]
    return [block for block in found if "norun" not in block.words]


def run(command: str | list[str], folder: Path) -> str:
    binaries = str(Path(sys.executable).parent)
    done = subprocess.run(
        command,
        cwd=folder,
        shell=isinstance(command, str),
        env={
            **os.environ,
            "PATH": binaries + os.pathsep + os.environ["PATH"],
            "PYTHONPATH": str(folder),
            "COLUMNS": "200",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def check_console(block: Block, folder: Path) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        output = run(command, folder)
        wanted = [re.escape(line.strip()).replace(r"\.\.\.", ".*") for line in expected.split("\n")]
        pattern = ".*".join(line for line in wanted if line)
        assert re.search(pattern, output, re.DOTALL), f"$ {command}\n{output}\nwanted:\n{expected}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path):
    blocks = blocks_of(page)
    for block in blocks:
        if block.file:
            target = tmp_path / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
    script = [block.text for block in blocks if block.language == "python" and not block.file]
    if script:
        path = tmp_path / "page.py"
        path.write_text("\n".join(script))
        run([sys.executable, "-W", "error", str(path)], tmp_path)
    for block in blocks:
        if block.language == "console":
            check_console(block, tmp_path)
