"""``agl promote run`` and ``serve`` as processes: killed, run twice, and on a store server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.store import LightningStore, with_installed
from agl_core.types import PromptTemplate
from agl_promote import Promotion
from tests.plugins.agl_promote.conftest import runner
from tests.plugins.agl_promote.test_live_traffic import begin, live_plan
from tests.plugins.agl_promote.test_promotion import noise

sqlite = pytest.importorskip("agl_store_sqlite")

PROGRAM = """
import hashlib
import agl_core as agl

@agl.rollout
def agent(task, prompt_template):
    digest = hashlib.blake2b(f"{task['id']}|{prompt_template.template}".encode()).digest()
    return float(digest[0] < (200 if prompt_template.template == "better" else 120))
"""
FILE = """
agent = "promoted_agent.py:agent"
strategy = "shm"
store = { type = "sqlite", path = "runs.db" }
trainer = { n_runners = 2 }
"""
FORKS = """
# Forks a process for each command, after the imports that take most of the time.
import os, sys
import agl_promote.cli, agl_promote.experiment, agl_runner, agl_store_sqlite
from agl_cli_kit import main

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        os._exit(main(line.split()))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
NAME = ["train.toml", "--name", "booking"]


async def fill(path: Path) -> None:
    store = sqlite.SqliteLightningStore(path)
    for name, text in (("night/v0", "seed"), ("night/v1", "better")):
        prompt = PromptTemplate(template=text, engine="f-string")
        await store.update_resources(name, {"prompt": prompt})
    await store.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "promoted_agent", raising=False)
    (tmp_path / "promoted_agent.py").write_text(PROGRAM)
    (tmp_path / "train.toml").write_text(FILE)
    tasks = [json.dumps({"id": number}) for number in range(60)]
    (tmp_path / "fresh.jsonl").write_text("\n".join(tasks))
    return tmp_path


def plan(*options: str) -> None:
    """Make a new store, with a plan."""
    for old in Path().glob("runs.db*"):
        old.unlink()
    asyncio.run(fill(Path("runs.db")))
    given = ["--candidate", "night/v1", "--champion", "night/v0", "--range", "0", "1", "--anyway"]
    assert main(["promote", "plan", *NAME, *given, *options]) == 0


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the promotion says, apart from times."""
    capsys.readouterr()
    assert main(["promote", "show", *NAME, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    found["history"] = [one["resources_id"] for one in found["history"]]
    return found


class Forks:
    """Runs ``agl`` in forked processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def run(self, *command: str, kill_after: float | None = None) -> bool:
        """Run a command to its end, or kill it; return whether it was killed."""
        self._stdin.write(" ".join(command) + "\n")
        self._stdin.flush()
        pid = int(self._stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        return int(self._stdout.readline()) == -signal.SIGKILL


@contextmanager
def forks() -> Iterator[Forks]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=-1, stdout=-1, text=True, env=os.environ
    ) as process:
        yield Forks(process)
        assert process.stdin is not None
        process.stdin.close()


def killed(count: int, capsys: pytest.CaptureFixture[str], *options: str) -> None:
    """Kill promotions at so many random times; each comes to the decision of an undisturbed one."""
    chance = random.Random(7)
    with forks() as agl:
        plan(*options)
        began = time.monotonic()
        agl.run("promote", "run", *NAME)
        took = time.monotonic() - began
        undisturbed = shown(capsys)
        assert undisturbed["decision"] != "undecided"
        left = count
        while left:
            plan(*options)
            for _ in range(min(left, 5)):
                if not agl.run("promote", "run", *NAME, kill_after=chance.uniform(0, 0.6 * took)):
                    break
                left -= 1
            agl.run("promote", "run", *NAME)
            assert shown(capsys) == undisturbed
            assert asyncio.run(count_rollouts()) == 2 * undisturbed["pairs"]


async def count_rollouts() -> int:
    """Return the number of rollouts, after a check that each pair's batch was enqueued once."""
    store = sqlite.SqliteLightningStore("runs.db")
    rollouts = await store.query_rollouts()
    labels = [(r.metadata["batch"], r.metadata["index"]) for r in rollouts]
    assert len(set(labels)) == len(labels)
    decided = (await Promotion.open(store, "booking")).pairs
    whole = -(-decided // 6) * 6
    assert len(rollouts) == 2 * min(60, whole)
    await store.close()
    return 2 * decided


FRESH = ["--tasks", "fresh.jsonl", "--batch", "6"]


@pytest.mark.usefixtures("folder")
def test_a_killed_process_leaves_a_promotion_that_decides_the_same(capsys):
    killed(4, capsys, *FRESH)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("test", ["planned", "anytime"])
def test_a_hundred_kills_change_no_decision(capsys, test):
    killed(50, capsys, *FRESH, "--test", test)


@pytest.mark.usefixtures("folder")
def test_a_second_process_is_refused(capsys):
    slow = PROGRAM.replace("    digest", "    import time; time.sleep(0.2)\n    digest")
    Path("promoted_agent.py").write_text(slow)
    plan(*FRESH)
    with subprocess.Popen([sys.executable, "-m", "agl_cli_kit", "promote", "run", *NAME]) as first:
        while not asyncio.run(holder()):
            time.sleep(0.05)
        assert main(["promote", "run", *NAME]) == 2
        assert "another process works on the promotion 'booking'" in capsys.readouterr().err
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130
    assert main(["promote", "run", *NAME]) == 0
    assert shown(capsys)["decision"] != "undecided"


async def holder() -> str:
    store = sqlite.SqliteLightningStore("runs.db")
    owner = (await Promotion.open(store, "booking")).recall("owner")
    await store.close()
    return owner


# -- live traffic ----------------------------------------------------------------------------------


def rewards(task: Any, arm: str) -> float:
    return float(noise(task, arm) < (0.9 if arm == "night/v1" else 0.3))


LIVE = ["--live", "--deadline", "600", "--max-episodes", "300", "--watch", "20"]


@contextmanager
def serving() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", "promote", "serve", *NAME]
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def send_traffic(store: LightningStore, process: subprocess.Popen[bytes]) -> None:
    """Enqueue and run episodes until the process ends."""
    async with runner(store, rewards):
        number = 0
        while process.poll() is None:
            await store.enqueue_rollout({"id": number}, resources_id="live:booking")
            number += 1
            await asyncio.sleep(0.01)


@pytest.mark.timeout(400)  # three processes that promote, beside others on two cores
@pytest.mark.usefixtures("folder")
def test_serve_is_killed_and_promotes_on_the_traffic_of_another_process(capsys):
    plan(*LIVE)

    async def act() -> int:
        store = with_installed(sqlite.SqliteLightningStore("runs.db"))
        with serving() as first:
            sending = asyncio.create_task(send_traffic(store, first))
            while not (await Promotion.open(store, "booking")).recall("episodes"):
                await asyncio.sleep(0.05)
            first.kill()
            await sending
        with serving() as second:
            await send_traffic(store, second)
            code = second.returncode
        await store.close()
        return code

    assert asyncio.run(act()) == 0
    found = shown(capsys)
    assert found["decision"] == "promote"
    assert found["history"] == ["night/v0", "night/v1"]
    assert (found["watched"], found["watch"], found["trial"]) == (20, "kept", None)
    assert main(["promote", "show", *NAME]) == 0
    out = capsys.readouterr().out
    assert "episodes" in out
    assert "20 episodes, the watch is over: the old version is not shown better" in out
    assert main(["promote", "run", *NAME]) == 2
    assert "is about live traffic: agl promote serve" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_store_server_assigns_the_traffic_of_its_clients():
    http = pytest.importorskip("agl_store_http")

    async def act() -> set[str | None]:
        store = sqlite.SqliteLightningStore("runs.db")
        server = http.LightningStoreServer(store, port=0)
        await server.start()
        client = http.LightningStoreClient(server.endpoint)
        try:
            await begin(store, live_plan())
            made = [
                await client.enqueue_rollout({"id": number}, resources_id="live:booking")
                for number in range(40)
            ]
        finally:
            await client.close()
            await server.stop()
            await store.close()
        return {one.resources_id for one in made}

    asyncio.run(fill(Path("runs.db")))
    assert asyncio.run(act()) == {"night/v0", "night/v1"}


@pytest.mark.usefixtures("folder")
def test_options_of_tasks_and_of_traffic_do_not_mix(capsys):
    given = ["--candidate", "night/v1", "--champion", "night/v0", "--range", "0", "1"]
    for options, text in (
        ([], "give either --tasks or --live"),
        (["--live", "--tasks", "fresh.jsonl"], "give either --tasks or --live"),
        (["--live"], "--live needs --deadline"),
        (["--live", "--deadline", "9", "--repeats", "2"], "--repeats needs --tasks"),
        (["--tasks", "fresh.jsonl", "--holdback", "0.2"], "--holdback needs --live"),
        (["--tasks", "fresh.jsonl", "--max-cost", "2"], "max_cost needs a price"),
        (["--tasks", "fresh.jsonl", "--wanted-gain", "0.2"], "--wanted-gain needs --test anytime"),
        (["--live", "--deadline", "9", "--guard", "input.a:0.1"], "name a segment, as in input.a="),
        (["--live", "--deadline", "9", "--max-episodes", "50"], "take more tasks, repeats or ep"),
    ):
        asyncio.run(fill(Path("runs.db")))
        assert main(["promote", "plan", *NAME, *given, *options]) in (1, 2)
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
