"""What the execution suite does when a strategy is slow, or the author's fixtures change things."""

from __future__ import annotations

import threading

import pytest

from agl_testing.execution.endings import interrupted_when


def test_a_run_that_is_never_ready_for_ctrl_c_does_not_hang():
    with (
        pytest.raises(AssertionError, match=r"no runner has come within 0\.1 s"),
        interrupted_when(lambda: False, 0.1),
    ):
        threading.Event().wait(60)


CONFTEST = """
import pytest

@pytest.fixture(autouse=True)
def of_the_author(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOLDER_OF_THE_TEST", str(tmp_path))
"""
STRATEGY = """
import os
import pytest
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_testing import ExecutionSuite

class Strategy(SharedMemoryExecutionStrategy):
    def execute(self, algorithm, runner, store):
        os.environ |= {changed}
        super().execute(algorithm, runner, store)

class TestStrategy(ExecutionSuite):
    @pytest.fixture
    def make_strategy(self):
        return lambda **options: Strategy(**options, main_thread="algorithm")
"""


def run_two_tests(pytester: pytest.Pytester, changed: dict[str, str]) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(STRATEGY.format(changed=changed))
    options = ("-p", "no:cacheprovider", "-o", "asyncio_mode=strict")
    chosen = "stays_open or leaves_the_process"
    return pytester.runpytest_subprocess(*options, "-k", chosen)


def test_what_fixtures_change_is_not_the_strategys(pytester: pytest.Pytester):
    run_two_tests(pytester, {}).assert_outcomes(passed=2)


def test_what_runs_change_is_named_without_values(pytester: pytest.Pytester):
    result = run_two_tests(pytester, {"LEFT_BY_A_RUN": "sk-secret"})
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*changed: ?'environment variable LEFT_BY_A_RUN'?*"])
    assert "sk-secret" not in result.stdout.str().partition("AssertionError")[2]
