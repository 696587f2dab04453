"""Faults that hurt users, injected into good components: how many of them the suites catch.

Each fault is a class in ``faults/``, and its docstring says what it does. ``CAUGHT_BY`` names the
test that must fail. By default a fault runs under that test only, unless it is ``SLOW``: then the
test waits for what never comes. The slow test runs each under its whole suite, as its author would.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from faults import (  # noqa: E402
    adapters,
    algorithms,
    environments,
    metrics,
    proxies,
    runner_calls,
    runner_endings,
    runners,
    servers,
    stores,
    strategies,
    tracers,
)
from suite_runs import SLIPS, Outcomes, Subject, run  # noqa: E402

MODULES: list[ModuleType] = [
    *(adapters, algorithms, environments, metrics, proxies),
    *(runner_calls, runner_endings, runners),
    *(servers, stores, strategies, tracers),
]
GOOD = [component for module in MODULES for component in module.GOOD]
FAULTS = [
    component
    for module in MODULES
    for name, component in vars(module).items()
    if isinstance(component, type)
    and component.__module__ == module.__name__
    and hasattr(component, "CAUGHT_BY")
    and component not in GOOD
    and not name.startswith("_")
]
MISSED = {fault for fault in FAULTS if not fault.CAUGHT_BY}
"""Those that no test of a suite is known to catch."""
QUICK = [fault for fault in FAULTS if fault not in MISSED and not getattr(fault, "SLOW", False)]


def subject(component: type) -> Subject:
    return Subject(
        f"{component.__module__.rpartition('.')[2]}_{component.__name__}",
        component,
        component.SUITE,  # pyright: ignore[reportAttributeAccessIssue]
        component.FIXTURE,  # pyright: ignore[reportAttributeAccessIssue]
        component.FLAGS,  # pyright: ignore[reportAttributeAccessIssue]
        getattr(component, "VALUE", "{fake}()"),
        getattr(component, "MORE", ""),
    )


def good_of(fault: type) -> type:
    """Return the good component that a fault was injected into."""
    return next(component for component in fault.__mro__ if component in GOOD)


def catching_tests(good: type) -> list[str]:
    """Return the tests that catch the faults of a good component."""
    return sorted({f.CAUGHT_BY for f in QUICK if good_of(f) is good})


# One worker runs all of them: each further worker would repeat the expensive fixture.
pytestmark = pytest.mark.xdist_group("faults")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcome and output of each test, by class and name. A second try looks at the same ones."""
    tests = [(subject(fault).name, fault.CAUGHT_BY) for fault in QUICK]
    tests += [(subject(good).name, test) for good in GOOD for test in catching_tests(good)]
    subjects = map(subject, [*QUICK, *GOOD])
    return run(tmp_path_factory.mktemp("faults"), subjects, tests)


def test_there_are_faults_of_every_suite():
    assert len(FAULTS) >= 100
    assert all(fault.__doc__ for fault in FAULTS), "a fault does not say what it does"
    for module in MODULES:
        assert len([f for f in FAULTS if f.__module__ == module.__name__]) >= 2


def test_nine_of_ten_faults_are_caught():
    assert len(MISSED) <= len(FAULTS) / 10, sorted(fault.__name__ for fault in MISSED)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: subject(fault).name)
def test_a_fault_is_caught_by_name(outcomes: Outcomes, fault: type):
    seen = outcomes[subject(fault).name, fault.CAUGHT_BY]  # pyright: ignore[reportAttributeAccessIssue]
    failures = [text for outcome, text in seen if outcome == "failure"]
    assert failures, seen
    # The failure must come from the suite's check, not from an error in the fault or its setup.
    assert not all(SLIPS.search(text) for text in failures), failures


@pytest.mark.timeout(600)
@pytest.mark.parametrize("good", GOOD, ids=lambda good: subject(good).name)
def test_the_good_components_pass_those_tests(outcomes: Outcomes, good: type):
    for test in catching_tests(good):
        seen = outcomes[subject(good).name, test]
        assert "passed" in {outcome for outcome, _ in seen} <= {"passed", "skipped"}, (test, seen)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whole_suites_catch_nine_of_ten_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # More than there are cores: most faults make a test wait.
    found = run(tmp_path, map(subject, [*FAULTS, *GOOD]), processes=4)
    caught = {
        name
        for (name, _), seen in found.items()
        for outcome, text in seen
        if outcome == "failure" and not SLIPS.search(text)
    }
    wrong = [subject(good).name for good in GOOD if subject(good).name in caught]
    left = [subject(fault).name for fault in FAULTS if subject(fault).name not in caught]
    with capsys.disabled():
        print(f"\n{len(FAULTS) - len(left)} of {len(FAULTS)} faults are caught; missed: {left}")
    assert not wrong, "good components fail"
    assert len(left) <= len(FAULTS) / 10
