"""The suites catch what they claim to catch: wrong components, one by one."""

import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from wrong.stores import WRONG_STORES  # noqa: E402
from wrong.tracers import WRONG_TRACERS  # noqa: E402

WRONG = [
    *(("StoreSuite", "store", fake) for fake in WRONG_STORES),
    *(("TracerSuite", "tracer", fake) for fake in WRONG_TRACERS),
]

MODULE = """
import sys
sys.path.insert(0, {here!r})
import pytest
from {module} import {fake}
from agl_testing import {suite}

class Test{fake}({suite}):
    flags = frozenset({flags!r})

    @pytest.fixture
    def {fixture}(self):
        return {fake}()
"""

FLAGS = {"StoreSuite": ["thread_safe", "events"], "TracerSuite": ["concurrent", "nested"]}


def test_there_are_enough_wrong_fakes():
    assert len({fake.__name__ for _, _, fake in WRONG}) >= 25


@pytest.mark.parametrize(("suite", "fixture", "fake"), WRONG, ids=lambda value: str(value))
def test_a_wrong_component_is_caught_by_name(pytester: pytest.Pytester, suite, fixture, fake):
    pytester.makepyfile(
        MODULE.format(
            here=str(HERE),
            module=fake.__module__,
            fake=fake.__name__,
            suite=suite,
            fixture=fixture,
            flags=FLAGS[suite],
        )
    )
    result = pytester.runpytest_subprocess(
        "-q", "-p", "no:cacheprovider", "-k", f"{fake.CAUGHT_BY}", "-o", "asyncio_mode=strict"
    )
    output = result.stdout.str()
    assert re.search(rf"FAILED .*::{fake.CAUGHT_BY}\b", output), output
    # Caught for what it does, not for a slip in the fake itself.
    assert not re.search(r"^E +(TypeError|AttributeError|NameError)", output, re.MULTILINE), output
