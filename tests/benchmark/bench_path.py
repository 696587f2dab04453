"""Lists the files of the project that one rollout in process passes, in order, each with its job.

Run ``python tests/benchmark/bench_path.py``, or ``pytest -m benchmark -s tests/benchmark``.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agl_core as agl
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

WITHOUT_REASON = 30
"""Files that a reader of one rollout can be asked to open without being told why."""
REASONS = {
    "agl_core/sync_calls.py": "a sync agent runs in a thread, so that heartbeats go on",
    "agl_tracer_otel/exporter.py": "spans are sent while the agent runs, by a thread of their own",
    "agl_runner/results.py": "what an agent may return has one reader, for every runner",
    "agl_core/emitter/_reward.py": "a returned number is a reward span, as an emitted one is",
    "agl_core/emitter/_tracer.py": "all emitters look up the tracer in the same way",
    "agl_core/tracer/_unsent.py": "tracers that send no span themselves share how one is made",
    "agl_core/otel/_attributes.py": "attributes have one form, whoever makes the span",
    "agl_core/types/_span.py": "the data model of a span",
    "agl_store_kit/batching.py": "one call is a batch of one, so that stores write one way",
    "agl_core/store/_encoded.py": "a span is encoded once, on its way into the store",
    "agl_store_memory/eviction.py": "a store in memory has a limit",
    "agl_store_memory/spans.py": "spans have two orders: of insertion and of sequence ids",
    "agl_runner/final_status.py": "a final status is written even if the store is away for a while",
    "agl_core/status.py": "stores, the dashboard and commands say the same of a record",
}
"""Why a rollout passes each of the others."""


@agl.rollout
def agent(task: int) -> float:
    """An agent that asks for nothing and returns its reward."""
    return 1.0


def walk() -> list[Path]:
    """Return the project's files with functions that one rollout calls, in order of the first call.

    Store and tracer are the default ones. An earlier rollout has imported everything.
    """
    return asyncio.run(_walk())


async def _walk() -> list[Path]:
    store = InMemoryLightningStore()
    await store.add_resources({})
    runner: LitAgentRunner[int] = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        await runner.step(1)
        with _called() as files:
            await runner.step(2)
    return [path for path in map(Path, files) if path.is_file() and name_of(path)]


@contextmanager
def _called() -> Generator[dict[str, None]]:
    """Yield the files whose functions any thread calls until the block ends."""
    files: dict[str, None] = {}  # a set that keeps the order

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.setdefault(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def name_of(path: Path) -> str:
    """Return the path from the package on, such as ``agl_core/env.py``; empty for other files."""
    for folder in reversed(path.parents):
        if folder.name.startswith("agl_") and (folder / "__init__.py").exists():
            return path.relative_to(folder.parent).as_posix()
    return ""


def job_of(path: Path) -> str:
    """Return the first line of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def report() -> None:
    """Print the files in order."""
    for number, path in enumerate(walk(), 1):
        print(f"{number:3}  {name_of(path):32}  {job_of(path)}")


@pytest.mark.benchmark
def test_report() -> None:
    report()


if __name__ == "__main__":
    report()
