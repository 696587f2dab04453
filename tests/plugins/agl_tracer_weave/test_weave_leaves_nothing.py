"""After training no library is instrumented, and the agent behaves as before."""

from __future__ import annotations

import pytest
from two_trainings import assert_nothing_is_left

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def test_two_trainings_leave_nothing_behind():
    assert_nothing_is_left(["weave", "weave"])
