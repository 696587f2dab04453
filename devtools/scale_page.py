"""Writes ``docs/scale.md`` from the output of a benchmark: ``python3 dev.py scale``."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from devtools.process import ROOT, output_of

PAGE = ROOT / "docs/scale.md"
BENCHMARK = "tests/benchmark/bench_scale.py"
CALLS = 8
"""Calls, and so spans, of a rollout in the benchmark."""
SECONDS = 60
"""How long a rollout of the example takes."""
SIZES = (100, 1_000, 10_000)
BUSY = 0.7
"""Share of a core to plan with; above it, waiting grows fast."""
STORE_COLUMNS = (
    *("store", "processes of the server", "CPU of a rollout: server", "database", "algorithm"),
    *("ceiling of one server core", "of one algorithm"),
)
PROXY_COLUMNS = ("prompt", "CPU of a call", "ceiling of one core")
SIZE_COLUMNS = (
    *("rollouts at a time", "rollouts per second", "store server on SQLite", "on PostgreSQL"),
    *("PostgreSQL itself", "proxy", "algorithm"),
)

TEXT = """\
# How far it scales

`python3 dev.py scale` writes this page from the output of a benchmark: what one core of each part
can do, and what to add at which size. To plan a cluster from your own rollouts instead, with
their lengths, failures and model servers, use [`agl simulate`](simulate.md).
[Deployment](deploy.md) says how to add a part.

Measured on {machine}, {date}. {load}

Each rollout has {calls} spans of 32 attributes of 150 characters, 40 kB. All parts share the
cores, so the table has CPU time instead of a rate at saturation: one core divided by it is the
ceiling of a part. Network and disk come on top.

## The store

A rollout is enqueued, claimed, written, finished, waited for and read. The algorithm's column is
one process with the client of the store server.

{stores}

One process of a store server uses one core. `agl store --n-workers N` starts N processes that
share the port, on a database that several processes can use; the table shows that the cost of a
rollout hardly changes with them. MongoDB's column of the database is left out: a stand-in for its
server was measured.

## The proxy

A call is routed, forwarded and captured with its token ids.

{proxies}

Run several proxies, each with all backends, when one is busy: a proxy keeps nothing that another
needs.

## What to add at which size

Rollouts of {seconds} seconds and {calls} calls with long prompts, {busy:.0%} of a core in use at
most:

{sizes}

Numbers are cores; below 1, a part shares its core. The model servers come on top, and need more
than all of these. Beyond one algorithm process, start a run per experiment: runs share a store.
"""


def page(results: Sequence[Mapping[str, Any]], *, machine: str, when: str, load: str) -> str:
    """Return the page.

    Args:
        results: The objects that ``bench_scale.py --json`` printed.
        machine: The machine in words.
        when: The month.
        load: A sentence on other work on the machine.
    """
    stores = [found for found in results if found["part"] == "store"]
    proxies = [found for found in results if found["part"] == "proxy"]
    return TEXT.format(
        machine=machine,
        date=when,
        load=load,
        calls=CALLS,
        seconds=SECONDS,
        busy=BUSY,
        stores=_table(STORE_COLUMNS, map(_store_row, stores)),
        proxies=_table(PROXY_COLUMNS, map(_proxy_row, proxies)),
        sizes=_table(SIZE_COLUMNS, (_size_row(size, stores, proxies[-1]) for size in SIZES)),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _store_row(found: Mapping[str, Any]) -> list[str]:
    return [
        found["store"],
        str(found["workers"]),
        f"{found['server_ms']:.2f} ms",
        f"{found['database_ms']:.2f} ms" if found["store"] == "postgres" else "",
        f"{found['algorithm_ms']:.2f} ms",
        f"{_ceiling(found['server_ms'])} rollouts/s",
        f"{_ceiling(found['algorithm_ms'])} rollouts/s",
    ]


def _proxy_row(found: Mapping[str, Any]) -> list[str]:
    cost = found["proxy_ms"]
    return [found["prompt"], f"{cost:.2f} ms", f"{_ceiling(cost)} calls/s"]


def _size_row(
    size: int, stores: Sequence[Mapping[str, Any]], proxy: Mapping[str, Any]
) -> list[str]:
    by_name = {(found["store"], found["workers"]): found for found in stores}
    sqlite, postgres = by_name["sqlite", 1], by_name["postgres", 2]
    rate = size / SECONDS
    costs = (
        sqlite["server_ms"],
        postgres["server_ms"],
        postgres["database_ms"],
        proxy["proxy_ms"] * CALLS,
        postgres["algorithm_ms"],
    )
    cores = (f"{rate * cost / 1e3 / BUSY:.2f}" for cost in costs)
    return [f"{size:,}", f"{rate:,.1f}", *cores]


def _ceiling(milliseconds: float) -> str:
    return f"{1000 / milliseconds:,.0f}"


def load_now() -> str:
    """Say how busy the machine is; an empty text where the system does not tell."""
    if not hasattr(os, "getloadavg"):
        return ""
    cores, busy = os.cpu_count() or 1, os.getloadavg()[0]
    return f"Other programs used the machine (load {busy:.1f})." if busy > cores / 4 else ""


def write(python: Path) -> None:
    """Run the benchmark and write the page; ``python`` is that of the development environment."""
    load = load_now()
    printed = output_of(python, BENCHMARK, "--json")
    results = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    text = page(results, machine=machine, when=date.today().strftime("%B %Y"), load=load)
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
