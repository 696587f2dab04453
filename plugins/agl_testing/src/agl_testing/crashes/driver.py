"""Checks that a run that is killed and resumed ends like an undisturbed run.

A driver kills the store's process, the algorithm's, a runner's, or all of them with SIGKILL at
random points of a small run, restarts them, and at the end compares the content of the store with
that of an undisturbed run. Every write that a client saw acknowledged must be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from agl_algorithm_kit import stored_runs
from agl_core.store import LightningStore
from agl_testing.crashes.stores import StoreSpec
from agl_testing.ports import free_port

__all__ = ["Report", "survive_kills"]

SEED = 20
"""Any number: equal runs kill at equal moments."""
VICTIMS = ("store", "algorithm", "runner", "all")
LONGEST_PAUSE = 0.9  # seconds between two kills; an undisturbed run takes about this long
PATIENCE = 60.0  # seconds until an undisturbed run must have ended
LAST_LINES = 200  # of the actors' log in the error


class Actors:
    """The process that forks the actors."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._log = log.open("w")
        self._process = subprocess.Popen(  # noqa: S603 -- this package's own script
            [sys.executable, str(Path(__file__).with_name("actors.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, actor: str, **arguments: Any) -> int:
        return self.ask(start=actor, **arguments)["pid"]

    def code_of(self, pid: int) -> int | None:
        return self.ask(code_of=pid)["code"]

    def close(self) -> None:
        self._process.communicate()
        self._log.close()


class World:
    """One run with its store; restarts dead processes.

    A context manager: at its end all processes are killed.
    """

    def __init__(self, actors: Actors, folder: Path, spec: StoreSpec) -> None:
        folder.mkdir()
        self.folder = folder
        self.spec = spec
        self._actors = actors
        self._port = free_port()
        self.sessions = 0
        self._store = 0
        self._training = 0
        self._orphans: set[int] = set()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: object) -> None:
        for group in {self._training, *self._orphans} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if not self._store:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._store, signal.SIGKILL)
        while self._actors.code_of(self._store) is None:
            time.sleep(0.005)

    def revive(self) -> bool:
        """Start missing processes; return whether the run has ended."""
        if not self._store or self._actors.code_of(self._store) is not None:
            self._store = self._actors.start("store", port=self._port, **self.spec._asdict())
            self._wait_until_it_serves()
        code = self._actors.code_of(self._training) if self._training else 1
        if code == 0:
            return True
        if code is not None:
            self._orphans.add(self._training)
            self.sessions += 1
            self._training = self._actors.start(
                "train",
                url=f"http://127.0.0.1:{self._port}",
                acknowledged=str(self.folder / "acknowledged.jsonl"),
            )
        return False

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._actors.code_of(self._store) is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            time.sleep(0.005)
        raise self._failure("the store does not serve")

    def _failure(self, what: str) -> AssertionError:
        said = self._actors.log.read_text().splitlines()[-LAST_LINES:]
        return AssertionError("\n".join([what, *said]))

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill a process; return whether it was running."""
        victims: list[int] = []
        if victim in ("store", "all"):
            victims.append(self._store)
        if victim in ("runner", "all"):
            with contextlib.suppress(psutil.NoSuchProcess):
                runners = [c.pid for c in psutil.Process(self._training).children()]
                victims += runners if victim == "all" else rng.sample(runners, min(1, len(runners)))
        if victim in ("algorithm", "all"):
            victims.append(self._training)
        hit = False
        for pid in victims:
            if self._actors.code_of(self._training) == 0:
                break  # the run has just ended: this kill would not count
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit = True
        return hit

    def finish(self, *, disturbed: bool = True) -> None:
        """Wait until the run has ended; only one that was disturbed may need several sessions."""
        deadline = time.monotonic() + PATIENCE
        while not self.revive():
            if self.sessions > 1 and not disturbed:
                raise self._failure("the run fails without a kill")
            if time.monotonic() > deadline:
                self._ask_where_they_are()
                raise self._failure("the run does not end")
            time.sleep(0.01)

    def _ask_where_they_are(self) -> None:
        """Have every process of the run write its stacks to the log."""
        alive = [self._store, self._training]
        for actor in tuple(alive):
            with contextlib.suppress(psutil.NoSuchProcess):
                alive += [child.pid for child in psutil.Process(actor).children(recursive=True)]
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)  # no event reports that the stacks are written


async def outcome_of(spec: StoreSpec) -> dict[str, Any]:
    """Return the run as the store has it, without ids, times and retries, which may differ."""
    store = spec.make()
    try:
        rollouts = {}
        for rollout in await store.query_rollouts():
            labels = rollout.metadata or {}
            attempts = (await store.query_attempts(rollout.rollout_id)).items
            # No attempt is left open. An abandoned attempt may still have succeeded; a
            # claim whose answer was lost is returned as unresponsive.
            assert attempts[-1].status == "succeeded", attempts
            assert {a.status for a in attempts} <= {"failed", "succeeded", "unresponsive"}, attempts
            spans = await store.query_spans(rollout.rollout_id, attempts[-1].attempt_id)
            key = (labels["run"], labels["batch"], labels["index"])
            assert key not in rollouts, "enqueued twice"
            rollouts[key] = (
                rollout.input,
                rollout.status,
                rollout.mode,
                rollout.resources_id,
                [(s.name, s.attributes, s.status.status_code, s.parent_id is None) for s in spans],
            )
        resources = {
            snapshot.resources_id: snapshot.resources
            for snapshot in await store.query_resources()
            # The history has times, the lease its process.
            if not snapshot.resources_id.startswith(("history:", "lease:"))
        }
        latest = await store.get_latest_resources()
        return {
            "rollouts": rollouts,
            "resources": resources,
            "latest": latest and latest.resources_id,
            "result": (await stored_runs(store))["crash"],
        }
    finally:
        await store.close()


async def check_acknowledged(spec: StoreSpec, folder: Path) -> int:
    """Check that every acknowledged write is in the store; return the number of writes."""
    store = spec.make()
    try:
        lines = (folder / "acknowledged.jsonl").read_text().splitlines()
        for line in lines:
            write = json.loads(line)
            await _check_one(store, write["path"], write["sent"], write["reply"])
        return len(lines)
    finally:
        await store.close()


async def _check_one(store: LightningStore, path: str, sent: Any, reply: Any) -> None:
    parts = path.strip("/").split("/")
    if path.endswith("/enqueue"):
        for rollout in reply:
            assert await store.get_rollout_by_id(rollout["rollout_id"]) is not None, path
    elif path.endswith("/dequeue"):
        for claimed in reply:
            found = await store.query_attempts(claimed["rollout_id"])
            assert claimed["attempt"]["attempt_id"] in {a.attempt_id for a in found}, path
    elif parts[0] == "resources":
        found = await store.get_resources_by_id(reply["resources_id"])
        assert found is not None
        assert found.version >= reply["version"], path
    elif parts[0] == "spans" and "next" not in parts:
        for span in sent.get("spans", [sent]):
            page = await store.query_spans(
                span["rollout_id"], span["attempt_id"], span_id=span["span_id"]
            )
            assert page.total == 1, path
    elif "attempts" in parts and sent and sent.get("status"):
        found = {a.attempt_id: a for a in await store.query_attempts(parts[1])}
        assert found[reply["attempt_id"]].status in ("succeeded", "failed"), path


class Report(NamedTuple):
    """Result of :func:`survive_kills`."""

    kills: Counter[str]
    """Number of kills by kind of process."""
    text: str
    """The counts as one line of text."""


Kill = Callable[[random.Random], bool]
"""Kills a process of a database server, and has it restarted; returns whether it was running."""


def survive_kills(
    folder: Path,
    make_spec: Callable[[Path], StoreSpec],
    kills: int,
    *,
    more: Mapping[str, Kill] = MappingProxyType({}),
) -> Report:
    """Kill processes of runs, restart them, and compare the results with an undisturbed run.

    Args:
        folder: Folder for runs and logs.
        make_spec: Returns the store of one run, given a folder of the run's own.
        kills: Number of kills.
        more: Further processes to kill, by name: those of the store's database.

    Raises:
        AssertionError: A run did not end, ended differently from an undisturbed one, or
            lost a write that was acknowledged.
    """
    actors = Actors(folder / "actors.log")
    try:
        return _survive_kills(actors, folder, make_spec, kills, more)
    finally:
        actors.close()


def _survive_kills(
    actors: Actors,
    folder: Path,
    make_spec: Callable[[Path], StoreSpec],
    wanted: int,
    more: Mapping[str, Kill],
) -> Report:
    rng = random.Random(SEED)
    with World(actors, folder / "calm", make_spec(folder / "calm")) as calm:
        calm.finish(disturbed=False)
    expected = asyncio.run(outcome_of(calm.spec))
    assert len(expected["rollouts"]) == 18
    assert expected["result"].finished
    assert asyncio.run(check_acknowledged(calm.spec, calm.folder)) > 50

    kills: Counter[str] = Counter()
    runs = writes = sessions = 0
    began = time.monotonic()
    while kills.total() < wanted:
        home = folder / f"run-{runs}"
        with World(actors, home, make_spec(home)) as world:
            world.revive()
            for _ in range(rng.randint(3, 12)):
                time.sleep(rng.uniform(0.0, LONGEST_PAUSE))
                if world.revive():
                    break
                victim = rng.choice((*VICTIMS, *more))
                kills[victim] += more[victim](rng) if victim in more else world.kill(victim, rng)
                world.revive()
            world.finish()
        assert asyncio.run(outcome_of(world.spec)) == expected, world.folder
        writes += asyncio.run(check_acknowledged(world.spec, world.folder))
        runs += 1
        sessions += world.sessions
    text = (
        f"{kills.total()} kills ({', '.join(f'{n} {who}' for who, n in kills.items())}) of "
        f"{runs} runs in {sessions} sessions, {time.monotonic() - began:.0f} s: 0 failures, "
        f"{writes} acknowledged writes, none missing"
    )
    return Report(kills, text)
