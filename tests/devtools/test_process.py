"""Jobs: in order, side by side, with their output and their failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from devtools.process import CORES, ROOT, every, once, run


def say(*words: str) -> None:
    for word in words:
        run(sys.executable, "-c", f"import sys; print({word!r}, file=sys.stderr)")


def fail() -> None:
    run(sys.executable, "-c", "print('failing'); exit(3)")


@pytest.mark.parametrize("side_by_side", [[], ["first", "second", "third"]])
def test_every_job_runs_and_failures_end_the_program(
    side_by_side: list[str], capfd: pytest.CaptureFixture[str]
):
    done: list[str] = []
    jobs = {"first": lambda: done.append("1"), "second": fail, "third": lambda: done.append("3")}
    with pytest.raises(SystemExit, match=r"^failed: second$"):
        every(jobs, side_by_side=side_by_side)
    assert sorted(done) == ["1", "3"]
    lines = capfd.readouterr().out.splitlines()
    assert lines[2:5] == ["-- second", "failing", "-- second failed: 3"]
    assert lines[-1].startswith("-- ")
    assert {part.split()[0] for part in lines[-1][3:].split(", ")} == set(jobs)


@pytest.mark.skipif(CORES < 2, reason="one core runs one job at a time")
def test_jobs_side_by_side_run_at_once_and_print_apart(capfd: pytest.CaptureFixture[str]):
    both = threading.Barrier(2, timeout=30)

    def job(name: str) -> None:
        say(f"{name} 1")
        both.wait()
        say(f"{name} 2")

    every(
        {"a": lambda: job("a"), "b": lambda: job("b"), "c": lambda: say("c")},
        side_by_side=["a", "b"],
    )
    out, err = capfd.readouterr()
    assert err == "c\n", "only a job that runs by itself prints at once"
    lines = [line for line in out.splitlines() if not line.endswith(" s")]
    assert lines == ["-- c", "-- a", "a 1", "a 2", "-- b", "b 1", "b 2"]


def test_what_several_jobs_need_is_made_once():
    made: list[int] = []

    @once
    def make() -> object:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(make())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(found) == 4
    assert len(set(found)) == 1


@pytest.mark.skipif(CORES < 2, reason="one core runs one job at a time")
def test_jobs_within_a_job_side_by_side_print_with_it(capfd: pytest.CaptureFixture[str]):
    both = threading.Barrier(2, timeout=30)

    def job(name: str) -> None:
        both.wait()
        every({f"{name} {n}": lambda n=n: say(f"{name}{n}") for n in (1, 2)})
        both.wait()

    every({"a": lambda: job("a"), "b": lambda: job("b")}, side_by_side=["a", "b"])
    out = capfd.readouterr().out
    lines = [line for line in out.splitlines() if not line.endswith(" s")]
    parts = [
        [f"-- {name}", f"-- {name} 1", f"{name}1", f"-- {name} 2", f"{name}2"] for name in "ab"
    ]
    assert lines == parts[0] + parts[1]


ENDS_SLOWLY = """
import time
try:
    print("started", flush=True)
    while True:
        time.sleep(0.05)  # a signal just before signal.pause() would be waited for
except KeyboardInterrupt:
    time.sleep(0.5)  # longer than Python waits for a child before it kills it
    print("tidied", flush=True)
"""
IN_ORDER = f"""
import sys
from devtools.process import Interrupted, attempt, run
try:
    attempt(dict.fromkeys("ab", lambda: run(sys.executable, "-c", {ENDS_SLOWLY!r})))
except Interrupted as error:
    print("left", *error.failed)
"""
SIDE_BY_SIDE = """
import os, subprocess, sys
from devtools.process import Interrupted, attempt, ended_by, run
def job():
    with subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
    ) as process, ended_by(process.kill):
        os.write(1, b"started\\n")  # whole, beside the other job's
        process.wait()
    run(sys.executable, "-c", "print('after')")
try:
    attempt(dict.fromkeys("ab", job), side_by_side="ab")
except Interrupted as error:
    print("left", *sorted(error.failed))
"""


@pytest.mark.parametrize(("program", "ended"), [(IN_ORDER, ["tidied"]), (SIDE_BY_SIDE, [])])
def test_ctrl_c_ends_what_runs_and_starts_nothing_more(program: str, ended: list[str]):
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(1 if ended else CORES):  # all that run at a time have started
            while "started" not in process.stdout.readline():
                assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        lines = process.communicate(timeout=60)[0].splitlines()
    said = [line for line in lines if not line.startswith("--") and line != "started"]
    assert said == [*ended, "left a b"]


BEGINS_WITH_CTRL_C = """
import os, signal, subprocess, sys
from devtools import process
begin = subprocess.Popen
def begin_after_ctrl_c(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)  # the command is not there yet to get it
    if WAITS:
        process._interrupted.wait()
    return begin(*arguments, **options)
process.subprocess.Popen = begin_after_ctrl_c
endless = "import signal; signal.pause()"
try:
    process.attempt({"a": lambda: process.run(sys.executable, "-c", endless)}, side_by_side="a")
except process.Interrupted as error:
    print("left", *error.failed)
"""


@pytest.mark.parametrize("waits", [True, False])
def test_ctrl_c_ends_a_command_that_begins_at_the_same_time(waits: bool):
    program = f"WAITS = {waits}\n{BEGINS_WITH_CTRL_C}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "left a"
