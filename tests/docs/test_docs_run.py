"""Every code block of the documentation is executed unchanged.

Each page runs in a folder of its own, from top to bottom; :mod:`devtools.pages` says what happens
to a block. ``python3 dev.py docs`` runs what takes longer: shell blocks, which install, the
tests of the plugins that pages generate, the quick start and the tutorials.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import newcomer
from devtools.pages import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
FOUND = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
PAGES = sorted(page for page in FOUND if page.relative_to(ROOT) not in newcomer.PATH)

TESTS_OF_A_NEW_PLUGIN = re.compile(r"\(cd agl-\S+ && python -m pytest .*\)")


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
    for command in block.commands():
        if TESTS_OF_A_NEW_PLUGIN.fullmatch(command.text):
            continue
        output = run(command.text, folder)
        assert command.matches(output), f"$ {command.text}\n{output}\nwanted:\n{command.expected}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path):
    blocks = blocks_of(page)
    for block in blocks:
        if block.file:
            block.write(tmp_path)
    script = [block.text for block in blocks if block.language == "python" and not block.file]
    if script:
        path = tmp_path / "page.py"
        path.write_text("\n".join(script))
        run([sys.executable, "-W", "error", str(path)], tmp_path)
    for block in blocks:
        if block.language == "console":
            check_console(block, tmp_path)
