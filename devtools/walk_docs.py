"""Walks the documentation as a newcomer does: a clone, a fresh environment, each block as typed.

The pages are walked in the order of :func:`pages`, with one environment: README.md installs the
project, and a page that needs more says what to install. A page starts in the root of a clean clone
and has one shell, which keeps its folder and its variables. Unlike in the tests of the documents,
nothing is installed beyond what the pages install.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from devtools import environments
from devtools.pages import Block, blocks_of
from devtools.process import ROOT, ended_by, every, output_of

OTHER_STEPS = ("python3 dev.py test",)
"""Commands of the pages that are steps of CI of their own."""
TIMEOUT = 300.0
"""Longest time of one command, in seconds."""
START_SECONDS = 60.0
"""Longest time until a server says where it serves."""
ADDRESS = re.compile(r"https?://[\w.:]+(/\S*)?")
GENERATED = ("store", "walked")
"""Kind and name of the plugin whose generated README is walked."""


def walk(arguments: Sequence[str]) -> None:
    """Walk the pages, or README.md and those named.

    Raises:
        SystemExit: A block failed.
    """
    unknown = set(arguments) - {page.as_posix() for page in pages()}
    if unknown:
        sys.exit(f"no such page: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="agl-walk-") as folder:
        clone, venv = Path(folder) / "agl", Path(folder) / "venv"
        copy_of_working_tree(clone)
        environments.create(venv)
        jobs: dict[str, Callable[[], object]] = {}
        for page in pages():
            if not arguments or page.as_posix() in (*arguments, "README.md"):
                jobs[page.as_posix()] = partial(walk_page, page, clone, venv)
        if not arguments:
            jobs["the README of a new plugin"] = partial(walk_new_plugin, clone, venv)
        every(jobs)


def pages() -> list[Path]:
    """Return the pages to walk, relative to the root.

    :mod:`devtools.newcomer` walks the quick start and the tutorials, from wheels.
    """
    plugins = sorted(ROOT.glob("docs/plugins/*.md"), key=lambda page: page.name != "index.md")
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *plugins]
    return [path.relative_to(ROOT) for path in found if path.name != "quick-start.md"]


def copy_of_working_tree(clone: Path) -> None:
    """Make a clone that also has the changes that are not committed."""
    clone.mkdir()
    names = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, clone / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    author = ("-c", "user.name=walk", "-c", "user.email=walk@localhost")
    output_of("git", "init", "--quiet", cwd=clone)
    output_of("git", "add", "--all", cwd=clone)
    output_of("git", *author, "commit", "--quiet", "--message", "clone", cwd=clone)


# -- one page --------------------------------------------------------------------------------------


def walk_page(page: Path, clone: Path, venv: Path) -> None:
    output_of("git", "clean", "--quiet", "-dffx", cwd=clone)
    output_of("git", "checkout", "--quiet", ".", cwd=clone)
    Walker(clone, venv).walk(blocks_of(clone / page))


def walk_new_plugin(clone: Path, venv: Path) -> None:
    kind, name = GENERATED
    walker = Walker(clone, venv)
    walker.type(f"agl plugins new {kind} {name} && cd agl-{kind}-{name}")
    walker.walk(blocks_of(clone / f"agl-{kind}-{name}" / "README.md"))


class Walker:
    """One shell: its folder and its variables last from command to command.

    Args:
        folder: Where the shell starts.
        venv: The environment that is active in it.
        retyped: Returns what is typed in place of a line of a page.
    """

    def __init__(
        self, folder: Path, venv: Path, retyped: Callable[[str], str] = lambda line: line
    ) -> None:
        self._folder = folder
        self._retyped = retyped
        binaries = venv / environments.BIN
        hidden = ("PYTHON", "UV_", "COVERAGE", "AGL_", "VIRTUAL_ENV")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self._variables = inherited | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(venv),
            "COLUMNS": "200",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def walk(self, blocks: Sequence[Block]) -> None:
        """Execute blocks in order; Python blocks without a shell between them are one program."""
        program: list[str] = []
        for block in blocks:
            if block.file:
                block.write(self._folder)
            elif block.language == "python":
                program.append(block.text)
            elif block.language in ("sh", "console"):
                self._run_program(program)
                self._shell(block)
        self._run_program(program)

    def _run_program(self, program: list[str]) -> None:
        if program:
            path = self._folder / "page.py"
            path.write_text("\n".join(program))
            program.clear()
            self.type(f"python -W error {path}")

    def _shell(self, block: Block) -> None:
        if block.language == "console":
            for command in block.commands():
                output = self.type(command.text)
                if not command.matches(output):
                    sys.exit(f"$ {command.text}\n{output}\nwanted:\n{command.expected}")
            return
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith(OTHER_STEPS) or not line.strip():
                continue
            if "serves" in block.words:
                self._serve(line)
            else:
                self.type(self._retyped(line))

    def type(self, command: str) -> str:
        """Type a command and return its output.

        Raises:
            SystemExit: It failed; the message holds its output.
        """
        with tempfile.TemporaryDirectory() as folder:
            # The next command starts with the folder and the variables that this one left.
            after = Path(folder) / "after"
            keep = f'code=$?; (pwd; env -0) > "{after}"; exit $code'
            with self._started(f"{command}\n{keep}") as process:
                try:
                    output = process.communicate(timeout=TIMEOUT)[0]
                except subprocess.TimeoutExpired:
                    sys.exit(f"$ {command}\ndid not end within {TIMEOUT:g} s")
            if process.returncode:
                sys.exit(f"$ {command}\nexited with {process.returncode}:\n{output}")
            where, _, variables = after.read_text().partition("\n")
        self._folder = Path(where)
        self._variables = dict(_pairs(variables))
        return output

    def _serve(self, command: str) -> None:
        """Type a command that serves, open the page that it names, and end it with Ctrl+C.

        Raises:
            SystemExit: It named no page, the page did not answer, or Ctrl+C did not end it.
        """
        with self._started(f"exec {command}") as process, ThreadPoolExecutor(1) as reader:
            assert process.stdout is not None
            output: list[str] = []
            address = reader.submit(_first_address, process.stdout, output)
            try:
                if found := address.result(START_SECONDS):
                    _open(found)
                process.send_signal(signal.SIGINT)
                output.append(process.communicate(timeout=30)[0])
            except TimeoutError:
                found = None
                process.kill()
            except subprocess.TimeoutExpired:
                sys.exit(f"$ {command}\ndid not end at Ctrl+C")
        if not found or process.returncode not in (0, 130, -signal.SIGINT):
            sys.exit(f"$ {command}\nexited with {process.returncode}:\n{''.join(output)}")

    @contextmanager
    def _started(self, script: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:

            def kill() -> None:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

            with ended_by(kill):
                try:
                    yield process
                finally:
                    kill()


def _first_address(lines: Iterable[str], output: list[str]) -> str | None:
    """Append lines to ``output`` until one holds an address, and return that; None at the end."""
    for line in lines:
        output.append(line)
        if found := ADDRESS.search(line):
            return found[0]
    return None


def _open(address: str) -> None:
    """Open a page as a browser does.

    Raises:
        SystemExit: It did not answer, or a page of its own is not there.
    """
    try:
        with urllib.request.urlopen(address, timeout=START_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        # An API has no page at its address alone.
        if urlsplit(address).path:
            sys.exit(f"{address} answered {error.code}")
    except OSError as error:
        sys.exit(f"{address} did not answer: {error}")


def _pairs(variables: str) -> Iterator[tuple[str, str]]:
    ignored: Mapping[str, None] = dict.fromkeys(("_", "SHLVL", "PWD", "OLDPWD"))
    for line in filter(None, variables.split("\0")):
        name, _, value = line.partition("=")
        if name not in ignored:
            yield name, value
