"""Runs a script as ``python script.py`` does, with the compatibility import in place."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from agl_legacy.importing import AlreadyInstalledError, install

__all__ = ["main"]

USAGE = """\
usage: python -m agl_legacy SCRIPT.py [ARGS...]
       python -m agl_legacy -m MODULE [ARGS...]

Run a program that says `import agentlightning` on agl, unchanged.

example: python -m agl_legacy train.py --epochs 3
"""
_BAD_USAGE = 2
"""Exit code of a wrong command line, as argparse and click have it."""


def main(arguments: Sequence[str]) -> int:
    """Run the program that the arguments name; its exceptions and exits pass through.

    Returns:
        The exit code, if the program came to its end or could not be started.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else _BAD_USAGE
    if arguments[0] == "-m":
        if len(arguments) == 1:
            return _refuse("-m needs the name of a module")
        return _run_module(arguments[1], arguments[2:])
    if arguments[0].startswith("-"):
        return _refuse(f"unknown option {arguments[0]}; see --help")
    return _run_script(arguments[0], arguments[1:])


def _refuse(reason: str) -> int:
    print(f"agl_legacy: {reason}", file=sys.stderr)  # noqa: T201
    return _BAD_USAGE


def _run_module(name: str, arguments: Sequence[str]) -> int:
    sys.argv = [name, *arguments]
    if problem := _install():
        return _refuse(problem)
    sys.excepthook = _print_as_usual
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    return 0


def _run_script(path: str, arguments: Sequence[str]) -> int:
    sys.argv = [path, *arguments]
    file = os.path.abspath(path)  # noqa: PTH100 - as Python does: without following links
    try:
        with io.open_code(file) as stream:
            source = stream.read()
    except OSError as error:
        return _refuse(f"cannot open {path}: {error.strerror}")
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(path).resolve().parent)  # python -m puts the current folder there
    if problem := _install():
        return _refuse(problem)
    sys.excepthook = _print_as_usual
    _execute(compile(source, file, "exec", dont_inherit=True), file)
    return 0


def _install() -> str:
    """Install the import; return the reason why it cannot be, or an empty text."""
    try:
        install()
    except AlreadyInstalledError as error:
        return str(error)
    return ""


def _execute(code: CodeType, file: str) -> None:
    main_module = ModuleType("__main__")
    main_module.__dict__.update(
        __builtins__=__builtins__,
        __cached__=None,
        __file__=file,
        __loader__=SourceFileLoader("__main__", file),
    )
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is the purpose


def _print_as_usual(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught exception without the frames of this package and of ``python -m``."""
    own = (__file__, str(Path(__file__).with_name("__main__.py")), runpy.__spec__.origin)
    while trace is not None and trace.tb_frame.f_code.co_filename in (*own, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
