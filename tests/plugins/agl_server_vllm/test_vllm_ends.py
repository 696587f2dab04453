"""No process of vLLM outlives its owner, however the owner ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from agl_server_vllm import VLLMServer

OWNER = Path(__file__).parent / "vllm_parts" / "owner.py"
PROCESSES = 3  # a server, its engine, and a worker in a session of its own

Alive = Callable[[], list[int]]


@pytest.fixture
def start(model: Path, fake_env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(way: str, faults: str = "") -> subprocess.Popen[str]:
        owner = subprocess.Popen(
            [sys.executable, str(OWNER), str(model), way],
            env={**os.environ, **fake_env, "FAKE_VLLM": faults},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline().strip() == "ready"
        return owner

    yield start
    for owner in started:
        with suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def gone(alive: Alive, seconds: float = 20) -> bool:
    """Return whether all processes end in time; there is no event for the end of an orphan."""
    deadline = time.monotonic() + seconds
    while alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive()


@pytest.mark.parametrize(("way", "code"), [("returns", 0), ("raises", 1), ("forgets", 0)])
def test_an_owner_that_ends_normally(start, alive: Alive, way: str, code: int):
    owner = start(way)
    assert owner.wait(30) == code
    assert gone(alive)


def test_an_owner_whose_keeper_is_killed(start, alive: Alive):
    """The process group still ends; processes that left it cannot be found any more."""
    owner = start("kills-keeper")
    assert owner.wait(30) == 0
    assert gone(lambda: [pid for pid in alive() if os.getsid(pid) != pid])
    for pid in alive():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("faults", ["", "stubborn"])
def test_an_owner_that_is_signalled(start, alive: Alive, number: int, faults: str):
    owner = start("waits", faults)
    assert len(alive()) == PROCESSES
    owner.send_signal(number)
    owner.wait(30)
    assert gone(alive)


@pytest.mark.parametrize("way", ["forks", "forks-python"])
def test_an_owner_whose_children_survive(start, alive: Alive, way: str):
    """The children may hold the pipe open whose end would show the owner's end."""
    owner = start(way)
    owner.kill()
    owner.wait(30)
    assert gone(alive)


async def test_a_stop(make_server: Callable[..., VLLMServer], alive: Alive):
    server = make_server()
    await server.start()
    assert len(alive()) == PROCESSES
    await server.stop()
    assert alive() == []


async def test_a_stop_in_a_cancelled_scope(make_server: Callable[..., VLLMServer], alive: Alive):
    server = make_server()
    await server.start()
    log = server.log_file
    assert log is not None
    with anyio.CancelScope() as scope:
        scope.cancel()
        await server.stop()
    assert alive() == []
    assert not log.exists()


async def test_a_stop_of_a_process_that_ignores_sigterm(
    make_server: Callable[..., VLLMServer], alive: Alive
):
    server = make_server("stubborn", stop_timeout=0.5)
    await server.start()
    begun = time.monotonic()
    await server.stop()
    assert 0.5 <= time.monotonic() - begun < 10
    assert alive() == []


async def test_a_server_that_dies_leaves_no_process(
    make_server: Callable[..., VLLMServer], alive: Alive
):
    server = make_server()
    await server.start()
    front = min(alive())
    os.kill(front, signal.SIGKILL)
    await asyncio.wait_for(server.wait(), 20)
    assert not server.is_running()
    assert alive() == []


@pytest.mark.parametrize("faults", ["hangs", "dies", "hangs stubborn"])
async def test_a_start_that_fails(
    make_server: Callable[..., VLLMServer], alive: Alive, faults: str
):
    server = make_server(faults, start_timeout=3, stop_timeout=1)
    with pytest.raises(RuntimeError):
        await server.start()
    assert alive() == []


async def test_a_start_that_is_cancelled(make_server: Callable[..., VLLMServer], alive: Alive):
    server = make_server("hangs")
    starting = asyncio.create_task(server.start())
    while len(alive()) < PROCESSES:
        await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert alive() == []
    assert not server.is_running()
