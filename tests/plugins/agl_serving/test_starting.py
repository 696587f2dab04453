"""Processes begun in a thread: the loop stays free, and a cancelled start leaves nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agl_serving import start_in_thread


class Start:
    """Begins a process once it is let; keeps what was undone."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.let = asyncio.Event(), threading.Event()
        self.undone: list[str] = []
        self._error = error
        self._loop = asyncio.get_running_loop()

    def begin(self) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        self.let.wait(30)
        if self._error:
            raise self._error
        return "process"

    async def undo(self, begun: str) -> None:
        self.undone.append(begun)


async def test_the_loop_runs_while_a_process_begins():
    start = Start()
    starting = asyncio.create_task(start_in_thread(start.begin, start.undo))
    await start.begun.wait()
    start.let.set()
    assert await starting == "process"
    assert not start.undone


@pytest.mark.parametrize("presses", [1, 3])
async def test_a_cancelled_start_is_undone_when_it_has_begun(presses: int):
    start = Start()
    starting = asyncio.create_task(start_in_thread(start.begin, start.undo))
    await start.begun.wait()
    for _ in range(presses):
        starting.cancel()
        await asyncio.sleep(0)
    assert not starting.done()
    start.let.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert start.undone == ["process"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_did_not_begin_is_not_undone(cancelled: bool):
    start = Start(OSError("no process is left"))
    starting = asyncio.create_task(start_in_thread(start.begin, start.undo))
    await start.begun.wait()
    if cancelled:
        starting.cancel()
        await asyncio.sleep(0)
    start.let.set()
    with pytest.raises(asyncio.CancelledError if cancelled else OSError):
        await starting
    assert not start.undone
