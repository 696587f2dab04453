"""The short form of conformance suites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from devtools.process import ROOT

TEST = """
import pytest
from agl_store_memory import InMemoryLightningStore
from agl_testing.store import StoreSuite

class TestMemory(StoreSuite):
    flags = frozenset({"thread_safe"})

    @pytest.fixture
    async def store(self):
        yield InMemoryLightningStore()

    def test_of_its_own(self): ...

def test_beside_it(): ...
"""


def test_each_test_of_the_kit_runs_once_without_the_long_ones(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(TEST)
    options = ("-p", "devtools.gate.contract", "-p", "no:cacheprovider", "--collect-only", "-q")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", tmp_path, *options, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    tests = [name.partition("[")[0] for name in names]
    assert len(tests) == len(set(tests)) > 100
    assert any("[" in name for name in names), "the first value of a test with several"
    missing = {"test_random_histories_follow_the_lifecycle", "test_load", "test_of_its_own"}
    assert missing.isdisjoint(tests)
    assert "test_beside_it" not in tests
