"""Walks the quick start and the tutorials as a newcomer does, from built wheels.

The packages are installed from ``dist`` by their names, as they would be from an index. Each page
starts in an empty folder, without a clone, and all share one environment, in the order of
:data:`PATH`. The time of each page is printed, the installation that it begins with included.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from devtools import distributions, environments, packages
from devtools.pages import blocks_of
from devtools.process import ROOT, every
from devtools.walk_docs import Walker

PATH = (
    Path("docs/quick-start.md"),
    Path("docs/tutorials/trace-and-debug.md"),
    Path("docs/tutorials/train-a-prompt.md"),
    Path("docs/tutorials/write-an-algorithm.md"),
    Path("docs/tutorials/write-a-plugin.md"),
    Path("docs/tutorials/operate-a-cluster.md"),
    Path("docs/tutorials/train-on-a-cpu.md"),
    Path("docs/tutorials/train-on-a-gpu.md"),
    Path("docs/tutorials/train-a-coding-agent.md"),
)
"""The pages in order; heavy tests execute the blocks of the page on CPUs, which need PyTorch."""
LONGEST = {"quick-start": 180, "trace-and-debug": 300}
"""The longest time that a page may take, in seconds, by its name. The first ends with the page of
the dashboard, the second with the trace of an agent of one's own."""


def walk(pages: Sequence[Path] = PATH) -> None:
    """Walk the pages.

    Raises:
        SystemExit: A block failed, or a page took too long.
    """
    wheels = distributions.build()
    with tempfile.TemporaryDirectory(prefix="agl-newcomer-") as name:
        venv = Path(name) / "venv"
        environments.create(venv)
        every({page.as_posix(): partial(_walk_page, page, Path(name), wheels) for page in pages})


def _walk_page(page: Path, folder: Path, wheels: Path) -> None:
    empty = folder / page.stem
    empty.mkdir()
    start = time.monotonic()
    walker = Walker(empty, folder / "venv", partial(from_wheels, wheels=wheels))
    walker.walk(blocks_of(ROOT / page))
    seconds = time.monotonic() - start
    longest = LONGEST.get(page.stem, seconds)
    if seconds > longest:
        sys.exit(f"took {seconds:.0f} s, more than {longest}")


def from_wheels(line: str, wheels: Path) -> str:
    """Return the command that installs from wheels what ``line`` installs from a clone.

    Args:
        line: Any command line; only ``pip install`` is changed.
        wheels: The folder of the wheels.
    """
    words = shlex.split(line, comments=True)
    if words[:2] != ["pip", "install"]:
        return line
    text = " ".join(words[2:]).replace("-r requirements.txt", packages.FOR_USERS)
    names = [_name(word) for word in text.split()]
    return shlex.join(["pip", "install", "--quiet", "--find-links", str(wheels), *names])


def _name(word: str) -> str:
    match = re.fullmatch(r"\./plugins/(\w+)(\[.*\])?", word)
    if word == ".":
        return "agl-core"
    return match[1].replace("_", "-") + (match[2] or "") if match else word
