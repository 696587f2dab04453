"""Lines in the log about what calls wait for."""

from __future__ import annotations

import asyncio

import pytest

from agl_core import waits
from agl_core.waits import Waits


async def test_a_long_wait_is_told_again_and_several_share_a_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(waits, "REMIND_SECONDS", 0.01)
    said: list[str] = []
    told = asyncio.Event()

    def tell(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            told.set()

    thing = Waits(tell)
    async with asyncio.timeout(10):
        with thing.on(lambda: f"a thing ({len(said)})"):
            await told.wait()
    assert said == [f"Waiting for a thing ({number})" for number in range(3)]
    monkeypatch.setattr(waits, "REMIND_SECONDS", 60.0)
    said.clear()
    thing = Waits(said.append)
    with thing.on(lambda: "a"), thing.on(lambda: "b"):
        await asyncio.sleep(0.01)
    assert said == ["Waiting for a"]


async def test_a_short_wait_is_not_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.01)
    said: list[str] = []
    with Waits(said.append).on(lambda: "it"):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert said == []
