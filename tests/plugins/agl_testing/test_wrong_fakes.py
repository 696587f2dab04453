"""The suites detect faults: each wrong component fails a named test.

All wrong components run in one separate pytest process, each under the test that must fail. The
correct components that they derive from run under all of those tests and pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from suite_runs import SLIPS, Outcomes, Subject, run  # noqa: E402
from wrong import (  # noqa: E402
    adapters,
    algorithms,
    durable_stores,
    metrics,
    process_stores,
    proxies,
    rows,
    servers,
    shared_stores,
    stores,
    strategies,
    tracers,
)


class Kind(NamedTuple):
    """How the fakes of one module run under their suite: fixture, flags and further lines."""

    module: object
    fixture: str
    flags: list[str]
    value: str = "{fake}()"
    more: str = ""
    """Further lines of the class."""
    suite: str = ""
    """The suite; by default the kind has its name."""


NEW_WEIGHTS = """
    @pytest.fixture
    def new_weights(self, tmp_path):
        (tmp_path / "weights").write_text("Fine.")
        return tmp_path / "weights"
"""
READ_HELD = """
    @pytest.fixture
    def read(self):
        return lambda metrics: metrics.held
"""

KINDS = {
    "StoreSuite": Kind(stores, "store", ["thread_safe", "events", "ends", "scans"]),
    "durable stores": Kind(
        durable_stores,
        "store",
        ["thread_safe", "events", "durable"],
        more=durable_stores.REOPEN,
        suite="StoreSuite",
    ),
    "process stores": Kind(
        process_stores,
        "store",
        ["thread_safe", "events", "processes"],
        more=process_stores.CONNECTION,
        suite="StoreSuite",
    ),
    "shared stores": Kind(shared_stores, "connect", [], suite="database.SharedStoreSuite"),
    "TracerSuite": Kind(tracers, "tracer", ["concurrent", "nested"]),
    "AdapterSuite": Kind(adapters, "adapter", ["triplets", "logprobs"]),
    "rows": Kind(rows, "adapter", ["rows"], suite="AdapterSuite"),
    "AlgorithmSuite": Kind(algorithms, "algorithm", ["resources", "no_data", "resumes"]),
    "ExecutionSuite": Kind(
        strategies, "make_strategy", ["fails_open_attempts", "watchdog"], "{fake}"
    ),
    "ProxySuite": Kind(
        proxies,
        "make_proxy",
        ["streaming", "token_ids", "routes", "translation", "balancing", "passthrough"],
        "{fake}",
    ),
    "LLMServerSuite": Kind(servers, "server", ["weights", "token_ids"], more=NEW_WEIGHTS),
    "MetricsSuite": Kind(metrics, "metrics", ["readable", "buckets"], more=READ_HELD),
}
WRONG = [
    (suite, fake)
    for suite, kind in KINDS.items()
    for fake in vars(kind.module).values()
    if isinstance(fake, type) and getattr(fake, "CAUGHT_BY", "")
]
TESTS = {
    suite: sorted({fake.CAUGHT_BY for name, fake in WRONG if name == suite}) for suite in KINDS
}


def subject(kind: str, component: type) -> Subject:
    known = KINDS[kind]
    return Subject(
        f"{kind.replace(' ', '_')}_{component.__name__}",
        component,
        known.suite or kind,
        known.fixture,
        known.flags,
        known.value,
        known.more,
    )


# One worker runs all of them: each further worker would repeat the expensive fixture.
pytestmark = pytest.mark.xdist_group("wrong_fakes")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcome and output of each test, by class and name. A second try looks at the same ones."""
    right = [subject(suite, kind.module.Base) for suite, kind in KINDS.items()]  # pyright: ignore[reportAttributeAccessIssue]
    wrong = [subject(suite, fake) for suite, fake in WRONG]
    tests = [(one.name, fake.CAUGHT_BY) for one, (_, fake) in zip(wrong, WRONG, strict=True)]
    tests += [
        (one.name, test) for one, suite in zip(right, KINDS, strict=True) for test in TESTS[suite]
    ]
    return run(tmp_path_factory.mktemp("wrong"), [*wrong, *right], tests)


def test_there_are_enough_wrong_fakes():
    assert len({fake for _, fake in WRONG}) >= 170
    assert {suite for suite, _ in WRONG} == set(KINDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("suite", "fake"), WRONG, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_wrong_component_is_caught_by_name(outcomes: Outcomes, suite, fake):
    seen = outcomes[subject(suite, fake).name, fake.CAUGHT_BY]
    failures = [text for outcome, text in seen if outcome == "failure"]
    assert failures, seen
    # The failure must come from the suite's check, not from an error in the fake or its setup.
    assert not [text for text in failures if SLIPS.search(text)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", KINDS)
def test_the_correct_components_pass_those_tests(outcomes: Outcomes, suite):
    for test in TESTS[suite]:
        seen = outcomes[subject(suite, KINDS[suite].module.Base).name, test]  # pyright: ignore[reportAttributeAccessIssue]
        assert {outcome for outcome, _ in seen} == {"passed"}, (test, seen)
