"""Programs that start their run while a new process imports them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from agl_exec_cs.children import _interrupt
from agl_exec_cs.store_access import UrlPublisher

PROGRAM = """
import agl_core as agl

print("imported", flush=True)


@agl.rollout
def agent(task):
    return 1.0


strategy = {"type": "cs", "start_method": "METHOD", "graceful_timeout": 0.1}
agl.Trainer(strategy=strategy, n_runners=2).dev(agent, ["a"])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_ends_with_one_error(tmp_path: Path, method: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("METHOD", method))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("__main__") == 1
    assert done.stderr.splitlines()[-1] == (
        "agl_core.errors.LaunchError: the runners did not start: each process imports this "
        'program, which starts a run again: put the run below `if __name__ == "__main__":`, or '
        'use start_method="fork"'
    )
    assert done.stdout.count("imported") <= 3, "processes that cannot start are not replaced"


def test_a_process_that_just_ended_is_not_interrupted() -> None:
    """The fork server knows that it ended before the process object does."""
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    process.start()
    process.join()
    _interrupt(process)


def test_a_runner_that_died_early_does_not_keep_the_url_from_others() -> None:
    publisher = UrlPublisher(multiprocessing.get_context("spawn"), None, 1.0)
    dead, waiting = publisher.new_access().url, publisher.new_access().url
    assert isinstance(dead, Connection) and isinstance(waiting, Connection)
    dead.close()
    publisher.publish("http://127.0.0.1:1")
    assert waiting.recv() == "http://127.0.0.1:1"


def test_a_process_of_another_library_says_it_itself(tmp_path: Path) -> None:
    pool = """
import multiprocessing

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    print("exit code", process.exitcode)
else:
"""
    file = tmp_path / "program.py"
    body = "".join(f"    {line}\n" for line in PROGRAM.replace("METHOD", "fork").splitlines())
    file.write_text(pool + body)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "exit code 78" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("agl: each process imports this program")
