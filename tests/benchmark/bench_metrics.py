"""Measures what metrics cost the store server: its requests per CPU second with and without them.

Three servers run in turn under the same load, sent by ``bench_server``: one with metrics and two
without. All are started again several times, because equal servers differ by some percent from
start to start. Other work of the machine only adds to the CPU time of a request, so a server's
figure is that of its quickest tenth of short slices. A ratio of 0.98 means 2 % fewer requests per
CPU second; that of the two servers without metrics tells how far the ratios can be trusted. The
store is in memory; with ``AGL_BENCH_STORE=sqlite`` it is the store that ``agl store`` opens.

On a machine whose speed changes by more than metrics cost, valgrind tells more: it counts the
instructions of a server, the system's excluded. On the store in memory it finds the same number
again to 0.5 %.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

sys.path.insert(0, str(Path(__file__).parent))

from bench_server import (  # noqa: E402
    CONNECTIONS,
    PREFIX,
    STORE,
    Steps,
    drive,
    http,
    span_maker,
)

STARTS = int(os.environ.get("AGL_BENCH_STARTS", "5"))
SLICES = 40
SECONDS = 0.15  # of a slice: short, so that a change of the machine's load meets all servers
TRACKERS = ("prometheus",)
COUNT = ("valgrind", "--tool=callgrind", "--instr-atstart=no")
COUNTED_SECONDS = (3.0, 15.0)  # under valgrind, which takes fifty times as long


def serve(tracker: str, counted: bool) -> None:
    import logging

    from agl_core.plugins import build_component
    from agl_serving import (
        PythonServerLauncher,
        PythonServerLauncherArgs,
        freeze_memory,
        run_in_new_loop,
    )
    from agl_store_http import StoreApp, StoreAppOptions

    if counted:
        from agl_metrics_prometheus import totals

        # At the end only: with fifty times fewer requests a second, sums would count too much.
        totals._WRITE_SECONDS = 3600  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    options = StoreAppOptions(tracker=(tracker,) if tracker else ())
    app = StoreApp(build_component("store", STORE), options)
    logging.disable(logging.WARNING)

    async def main() -> None:
        launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
        await launcher.start()
        freeze_memory()
        print(launcher.port, flush=True)
        await launcher.wait()

    run_in_new_loop(main)


def rollout() -> Generator[bytes, bytes, int]:
    """One rollout as a runner has it: enqueue, claim, spans, end."""
    import json

    yield http("POST", f"{PREFIX}/queues/rollouts/enqueue", {"rollouts": [{"input": {"n": 1}}]})
    (claim,) = json.loads((yield http("POST", f"{PREFIX}/queues/rollouts/dequeue", {"limit": 1})))
    rollout_id, attempt_id = claim["rollout_id"], claim["attempt"]["attempt_id"]
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    make = span_maker(rollout_id, attempt_id)
    for number in range(4):
        yield http("POST", f"{PREFIX}/spans/next", ids)
        yield http("POST", f"{PREFIX}/spans", make(number))
    path = f"{PREFIX}/rollouts/{rollout_id}/attempts/{attempt_id}"
    yield http("POST", path, {"status": "succeeded"})
    return 11


def get() -> Generator[bytes, bytes, int]:
    """The cheapest request, for which metrics weigh most."""
    yield http("GET", f"{PREFIX}/rollouts/ro-none")
    return 1


CASES = {"rollout": rollout, "get": get}


def start(tracker: str, folder: Path, *under: str) -> subprocess.Popen[str]:
    command = [*under, sys.executable, __file__, "serve", tracker, *(["counted"] if under else [])]
    place = tempfile.mkdtemp(dir=folder)
    errors = subprocess.PIPE if under else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=place)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, that of its ended threads included."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns
    return sum(psutil.Process(pid).cpu_times()[:2])


@pytest.mark.parametrize("tracker", TRACKERS)
def test_cost_of_metrics(tracker: str, tmp_path: Path) -> None:
    trackers = {"without": "", "with": tracker, "also without": ""}
    for case, steps in CASES.items():
        starts = [
            microseconds({name: start(each, tmp_path) for name, each in trackers.items()}, steps)
            for _ in range(STARTS)
        ]
        without = statistics.median(found["without"] for found in starts)
        print(f"\n{tracker}, {case}: {without:.1f} us of CPU time per request without metrics")
        for name in ("with", "also without"):
            ratios = [found["without"] / found[name] for found in starts]
            error = statistics.stdev(ratios) / math.sqrt(len(ratios))
            print(f"  {name}: {statistics.mean(ratios):.3f} +- {error:.3f} times the requests")


def microseconds(servers: Mapping[str, subprocess.Popen[str]], steps: Steps) -> dict[str, float]:
    """Return the CPU time per request in the quickest tenth of the slices, by server; end all."""
    used: dict[str, list[float]] = {name: [] for name in servers}
    try:
        ports = {name: int(server.stdout.readline()) for name, server in servers.items()}  # pyright: ignore[reportOptionalMemberAccess]
        for number in range(SLICES + 1):
            for name in random.sample(sorted(servers), len(servers)):
                before = cpu_seconds(servers[name].pid)
                done = asyncio.run(drive(ports[name], steps, SECONDS, CONNECTIONS))
                if number:  # the first slice warms up
                    seconds = cpu_seconds(servers[name].pid) - before
                    used[name].append(1e6 * seconds / done.operations)
    finally:
        for server in servers.values():
            server.terminate()
            server.communicate()
    return {name: statistics.quantiles(slices, n=10)[0] for name, slices in used.items()}


@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
@pytest.mark.parametrize("tracker", TRACKERS)
def test_instructions_of_metrics(tracker: str, tmp_path: Path) -> None:
    for case, steps in CASES.items():
        without, again, measured = (
            instructions(each, steps, tmp_path) for each in ("", "", tracker)
        )
        print(f"\n{tracker}, {case}: {without:,.0f} instructions per request without metrics")
        print(f"  with: {measured - without:+,.0f}, {without / measured:.3f} times the requests")
        print(f"  also without: {again - without:+,.0f}, {without / again:.3f} times the requests")


def instructions(tracker: str, steps: Steps, folder: Path) -> float:
    """Return the instructions per request: those of a long run less those of a short one."""
    (few, short), (many, long) = (
        counted(tracker, steps, seconds, folder) for seconds in COUNTED_SECONDS
    )
    return (long - short) / (many - few)


def counted(tracker: str, steps: Steps, seconds: float, folder: Path) -> tuple[int, int]:
    """Return the requests of a run after its warm-up, and the instructions until its end."""
    server = start(tracker, folder, *COUNT)
    try:
        port = int(server.stdout.readline())  # pyright: ignore[reportOptionalMemberAccess]
        asyncio.run(drive(port, steps, COUNTED_SECONDS[0], 4))
        switch = ("callgrind_control", "-i", "on", str(server.pid))
        subprocess.run(switch, check=True, capture_output=True)
        done = asyncio.run(drive(port, steps, seconds, 4))
    finally:
        server.terminate()
        _, said = server.communicate()
    found = re.search(r"Collected : (\d+)", said)
    assert found, said
    return done.operations, int(found[1])


if __name__ == "__main__":
    serve(sys.argv[2] if len(sys.argv) > 2 else "", counted="counted" in sys.argv)
