"""``agl top``: its screen of 80 by 24 characters, and that it follows the store."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from rich.console import Console

from agl_store_memory import InMemoryLightningStore
from agl_top import Sampler
from agl_top.screen import Screen
from agl_top.words import ago, printable, seconds, spark

from .conftest import TERMINAL, reward


def drawn(screen: Screen, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    console.print(screen)
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_json_snapshot_counts_and_names(filled, agl):
    done = agl("top", *filled.options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    counts = {status: number for status, number in found["counts"].items() if number}
    assert counts == {"queuing": 1, "running": 1, "succeeded": 1, "failed": 1}
    assert found["recent_rewards"] == [0.75]
    assert found["running"] == [filled.running]
    assert [worker["worker_id"] for worker in found["workers"]] == [
        "runner-2",
        "runner-0",
        "runner-1",
    ]


def test_a_pipe_gets_one_plain_snapshot(filled, agl):
    done = agl("top", *filled.options)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "queuing 1  running 1  failed 1  succeeded 1  of 4" in done.stdout
    assert "0.750 mean of the last 1" in done.stdout
    assert filled.running in done.stdout


@pytest.mark.parametrize("size", [(80, 24), (80, 10), (200, 60)])
async def test_the_screen_never_exceeds_the_terminal(size):
    store = InMemoryLightningStore()
    for number in range(60):
        await store.enqueue_rollout({"text": "long " * 100, "number": number})
        await store.dequeue_rollout(f"a worker with a rather long name, number {number}")
    snapshot = await Sampler(store).take()
    lines = drawn(Screen("store " * 40, snapshot, "the server does not answer " * 9), *size)
    assert len(lines) < size[1]
    assert max(map(len, lines)) <= size[0]
    assert "60 workers, 60 busy" in "\n".join(lines)
    await store.close()


async def test_rates_are_what_finished_between_two_snapshots():
    store = InMemoryLightningStore()
    sampler = Sampler(store)
    assert (await sampler.take()).finished_per_second is None
    await store.enqueue_rollout("task")
    claim = await store.dequeue_rollout("runner")
    assert claim is not None
    await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")
    began = time.monotonic()
    rate = (await sampler.take()).finished_per_second
    assert rate is not None
    assert rate > 1 / (time.monotonic() - began + 60)
    await store.close()


async def test_rewards_that_are_no_finite_numbers_are_left_out():
    store = InMemoryLightningStore()
    for value in (math.nan, math.inf, 0.25):
        await store.enqueue_rollout("task")
        claim = await store.dequeue_rollout("runner")
        assert claim is not None
        ids = claim.rollout_id, claim.attempt.attempt_id
        await store.add_span(reward(*ids, value))
        await store.update_attempt(*ids, status="succeeded")
    snapshot = await Sampler(store).take()
    assert snapshot.recent_rewards == [0.25]
    assert "0.250 mean of the last 1" in "\n".join(drawn(Screen("store", snapshot)))
    await store.close()


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_times_are_shown_by_the_clock_of_the_store(agl_clock, monkeypatch, ahead):
    store = InMemoryLightningStore()
    await store.enqueue_rollout("task")
    await store.dequeue_rollout("runner")
    told = agl_clock.now + 65

    async def now():
        return told

    monkeypatch.setattr(store, "now", now)
    agl_clock.advance(ahead)
    snapshot = await Sampler(store).take()
    assert snapshot.time == told
    text = "\n".join(drawn(Screen("store", snapshot)))
    assert "1 m ago" in text
    assert "1 m 05 s" in text
    await store.close()


def test_words():
    assert [seconds(each) for each in (None, 0.4, 59.9, 125, 7260)] == [
        "-",
        "0.40 s",
        "59.9 s",
        "2 m 05 s",
        "2 h 01 m",
    ]
    assert ago(100, now=3800) == "1 h ago"
    assert ago(3800, now=100) == "0 s ago"
    assert printable("a\x1b[2J\u202eb\nc") == "a?[2J?b c"
    assert printable("x" * 30, 10) == "xxxxxxx..."
    assert spark([0, 0.5, 1]) == "▁▄█"
    assert spark([0, 0.5, 1], unicode=False) == "049"
    assert spark([2, 2]) == "▅▅"


class Terminal:
    """A terminal of 80 by 24 that a program runs in."""

    def __init__(self) -> None:
        self.host, self.program = pty.openpty()
        size = struct.pack("HHHH", 24, 80, 0, 0)
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, size)
        self.text = ""

    def wait_for(self, wanted: str, within: float = 30) -> float:
        """Read until a text was printed; return the seconds that it took."""
        began = time.monotonic()
        while wanted not in self.text:
            left = within - (time.monotonic() - began)
            assert left > 0, self.text[-2000:]
            if select.select([self.host], [], [], left)[0]:
                self.text += os.read(self.host, 65536).decode(errors="replace")
        return time.monotonic() - began

    def close(self) -> None:
        os.close(self.host)
        os.close(self.program)


def test_the_screen_follows_the_store_until_ctrl_c(filled, started):
    terminal = Terminal()
    try:
        process = started(
            "top",
            *filled.options,
            stdin=terminal.program,
            stdout=terminal.program,
            stderr=subprocess.STDOUT,
            env=TERMINAL,
        )
        terminal.wait_for("queuing 1")
        filled.change(lambda store: store.update_rollout(filled.queued, status="cancelled"))
        terminal.wait_for("cancelled 1")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        terminal.wait_for("\x1b[?1049l")  # the screen that was there before is back
    finally:
        terminal.close()
