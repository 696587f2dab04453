"""Tells a program that starts its run while a new process imports it to guard its main part.

With the start methods ``spawn`` and ``forkserver`` each process imports the program. Without
``if __name__ == "__main__":`` it would start a run of its own there.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Final, NoReturn

__all__ = ["ADVICE", "IMPORTS_MAIN", "check_main_guard"]

IMPORTS_MAIN: Final = 78
"""Exit code of a process in which the program starts a run while it is imported: a configuration
error (``EX_CONFIG`` of sysexits.h)."""
ADVICE: Final = (
    "each process imports this program, which starts a run again: put the run below "
    '`if __name__ == "__main__":`, or use start_method="fork"'
)


def check_main_guard() -> None:
    """End this process with :data:`IMPORTS_MAIN` if it is still importing the program.

    The parent, if it is ours, says why; so this process says nothing.
    """
    process = multiprocessing.current_process()
    # Set while the main module is imported; multiprocessing itself raises RuntimeError by it.
    if getattr(process, "_inheriting", False):
        _exit(process.name)


def _exit(name: str) -> NoReturn:
    ours = name.startswith("runner-") or name == "algorithm"
    if not ours:
        sys.stderr.write(f"agl: {ADVICE}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(IMPORTS_MAIN)  # a forkserver turns SystemExit into the code 1
