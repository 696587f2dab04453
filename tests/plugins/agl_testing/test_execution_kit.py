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
