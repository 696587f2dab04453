"""The suites detect faults: each wrong component fails a named test.

All wrong components run in one separate pytest process, each under the test that must fail. The
correct components that they derive from run under all of those tests and pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from wrong import (  # noqa: E402
    adapters,
    algorithms,
    durable_stores,
    metrics,
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
SLIPS = re.compile(
    r"^E +(TypeError|AttributeError|NameError)|natively supported|fixture '", re.MULTILINE
)

CLASS = """
class {name}(agl_testing.{suite}):
    flags = frozenset({flags!r})

    @pytest.fixture
    def {fixture}(self):
        from {module} import {fake}
        return {value}
{more}"""

Outcomes = dict[tuple[str, str], list[tuple[str, str]]]


def name_of(kind: str, fake: str) -> str:
    return f"Test_{kind.replace(' ', '_')}_{fake}"


def class_of(name: str, fake: type) -> str:
    kind = KINDS[name]
    return CLASS.format(
        name=name_of(name, fake.__name__),
        suite=kind.suite or name,
        fake=fake.__name__,
        flags=kind.flags,
        fixture=kind.fixture,
        module=fake.__module__,
        value=kind.value.format(fake=fake.__name__),
        more=kind.more,
    )


# One worker runs all of them: each further worker would repeat the expensive fixture.
pytestmark = pytest.mark.xdist_group("wrong_fakes")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcome and output of each test, by class and name. A second try looks at the same ones."""
    folder = tmp_path_factory.mktemp("wrong")
    right = [(suite, kind.module.Base) for suite, kind in KINDS.items()]  # pyright: ignore[reportAttributeAccessIssue]
    module = folder / "test_all.py"
    head = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport pytest, agl_testing.database\n"
    module.write_text(head + "".join(class_of(*each) for each in [*WRONG, *right]))
    ids = [f"{module}::{name_of(suite, fake.__name__)}::{fake.CAUGHT_BY}" for suite, fake in WRONG]
    ids += [
        f"{module}::{name_of(suite, 'Base')}::{test}" for suite in KINDS for test in TESTS[suite]
    ]
    report = folder / "report.xml"
    # Strict mode: the suites must not depend on a project's configuration of pytest-asyncio.
    options = ["-p", "no:cacheprovider", "-o", "asyncio_mode=strict", f"--junitxml={report}"]
    options += ["-o", "timeout_method=signal", "--timeout=60", f"--rootdir={folder}", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *ids],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        key = (case.get("classname", "").rpartition(".")[2], case.get("name", "").partition("[")[0])
        said = next(iter(case), None)
        outcome = "passed" if said is None or said.tag.startswith("system") else said.tag
        text = "" if said is None else f"{said.get('message')}\n{said.text}"
        found.setdefault(key, []).append((outcome, text))
    return found


def test_there_are_enough_wrong_fakes():
    assert len({fake for _, fake in WRONG}) >= 170
    assert {suite for suite, _ in WRONG} == set(KINDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("suite", "fake"), WRONG, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_wrong_component_is_caught_by_name(outcomes: Outcomes, suite, fake):
    seen = outcomes[name_of(suite, fake.__name__), fake.CAUGHT_BY]
    failures = [text for outcome, text in seen if outcome == "failure"]
    assert failures, seen
    # The failure must come from the suite's check, not from an error in the fake or its setup.
    assert not [text for text in failures if SLIPS.search(text)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", KINDS)
def test_the_correct_components_pass_those_tests(outcomes: Outcomes, suite):
    for test in TESTS[suite]:
        seen = outcomes[name_of(suite, "Base"), test]
        assert {outcome for outcome, _ in seen} == {"passed"}, (test, seen)
