"""Measures what metrics cost the store server: its requests per CPU second with and without them.

Both servers run in turn under the same load, sent by ``bench_server``. A ratio of 0.98 means that
the server answers 2 % fewer requests per CPU second. The middle half of the pairs' ratios is
printed as well: on a machine that does other work they differ. Other work only takes CPU time, so
the fastest rounds are the least disturbed; the 95th percentile of the rounds is printed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from itertools import count
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.benchmark

sys.path.insert(0, str(Path(__file__).parent))

from bench_server import CONNECTIONS, PREFIX, drive, http  # noqa: E402

ROUNDS = int(os.environ.get("AGL_BENCH_ROUNDS", "60"))
SECONDS = 0.4  # short, so that a change of the machine's load meets both servers
TRACKERS = ("prometheus",)


def serve(tracker: str) -> None:
    import logging

    from agl_core.store import InMemoryLightningStore
    from agl_serving import (
        PythonServerLauncher,
        PythonServerLauncherArgs,
        freeze_memory,
        run_in_new_loop,
    )
    from agl_store_http import StoreApp, StoreAppOptions

    options = StoreAppOptions(tracker=(tracker,) if tracker else ())
    app = StoreApp(InMemoryLightningStore(), options)
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
    for number in range(4):
        yield http("POST", f"{PREFIX}/spans/next", ids)
        yield http("POST", f"{PREFIX}/spans", span(number, **ids))
    path = f"{PREFIX}/rollouts/{rollout_id}/attempts/{attempt_id}"
    yield http("POST", path, {"status": "succeeded"})
    return 11


def span(number: int, **ids: str) -> dict[str, object]:
    return {
        **ids,
        "sequence_id": number + 1,
        "trace_id": f"{next(_numbers):032x}",
        "span_id": f"{number + 1:016x}",
        "parent_id": None,
        "name": "call",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"text": "x" * 150},
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }


_numbers = count(1)


def get() -> Generator[bytes, bytes, int]:
    """The cheapest request, for which metrics weigh most."""
    yield http("GET", f"{PREFIX}/rollouts/ro-none")
    return 1


CASES = {"rollout": rollout, "get": get}


def start(tracker: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "serve", tracker], stdout=subprocess.PIPE, text=True
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, that of its ended threads included."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns
    return sum(psutil.Process(pid).cpu_times()[:2])


@pytest.mark.parametrize("tracker", TRACKERS)
def test_cost_of_metrics(tracker: str) -> None:
    servers = {name: start(name) for name in ("", tracker)}
    try:
        ports = {name: int(server.stdout.readline()) for name, server in servers.items()}  # pyright: ignore[reportOptionalMemberAccess]
        for case, steps in CASES.items():
            rates: dict[str, list[float]] = {"": [], tracker: []}
            for place in range(ROUNDS + 1):
                for name in sorted(servers, reverse=bool(place % 2)):
                    before = cpu_seconds(servers[name].pid)
                    done = asyncio.run(drive(ports[name], steps, SECONDS, CONNECTIONS))
                    used = cpu_seconds(servers[name].pid) - before
                    if place:  # the first round warms up
                        rates[name].append(done.operations / used)
            pairs = zip(rates[tracker], rates[""], strict=True)
            ratios = [on / off for on, off in pairs]
            low, middle, high = statistics.quantiles(ratios)
            off, on = (statistics.median(rates[name]) for name in ("", tracker))
            calm = [statistics.quantiles(rates[name], n=20)[-1] for name in ("", tracker)]
            print(
                f"\n{tracker}, {case}: {off:.0f} requests per CPU second without, {on:.0f} with; "
                f"ratio {middle:.3f} ({low:.3f} to {high:.3f}); "
                f"of the fastest rounds {calm[0]:.0f} and {calm[1]:.0f}, {calm[1] / calm[0]:.3f}"
            )
    finally:
        for server in servers.values():
            server.terminate()
            server.communicate()


if __name__ == "__main__":
    serve(sys.argv[2] if len(sys.argv) > 2 else "")
