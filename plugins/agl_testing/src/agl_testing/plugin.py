"""The pytest plugin: enforces the rules of suites and provides the helpers as fixtures.

Pytest loads it through its entry point wherever ``agl-testing`` is installed. It changes only tests
of :class:`agl_testing.suite.Suite` subclasses.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from agl_testing.clock import agl_clock
from agl_testing.network import agl_loopback_only
from agl_testing.registry import agl_registry
from agl_testing.replay import agl_recording, agl_replay, parametrize_recordings
from agl_testing.suite import SUITE_VERSION, Suite

__all__ = [
    "NewConformanceTestWarning",
    "agl_clock",
    "agl_loopback_only",
    "agl_recording",
    "agl_registry",
    "agl_replay",
]


class NewConformanceTestWarning(UserWarning):
    """A conformance test that is new in this minor version fails; it will count in the next."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("agl").addoption(
        "--agl-strict",
        action="store_true",
        help="count conformance tests that are new in this minor version, instead of warning",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "agl_requires(*flags): the suite test applies to components that claim these"
    )
    config.addinivalue_line(
        "markers", "agl_since(version): the suite test is new in this version of the kit"
    )
    config.addinivalue_line(
        "markers", "agl_suite(path): file of recorded rollouts for the fixture agl_replay"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_recordings(metafunc)


# -- suites keep their tests ---------------------------------------------------------------------


def suite_tests(suite: type[Suite]) -> dict[str, Any]:
    """Return the tests that the kit itself defines for a suite class, by name."""
    found: dict[str, Any] = {}
    for base in reversed(suite.__mro__):
        if base.__module__.split(".")[0] == __package__:
            found |= {n: v for n, v in vars(base).items() if n.startswith("test")}
    return found


def tampered_tests(cls: type[Suite]) -> list[str]:
    """Return the names of suite tests that ``cls`` overrides or deletes."""
    return [
        name
        for name, test in suite_tests(cls).items()
        if inspect.getattr_static(cls, name) is not test
    ]


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    if not (isinstance(obj, type) and issubclass(obj, Suite)):
        return
    tampered = tampered_tests(obj)
    if tampered:
        raise pytest.Collector.CollectError(
            f"{obj.__qualname__} overrides or deletes conformance tests: {', '.join(tampered)}. "
            "A test is switched off by leaving its flag out, or marked xfail(reason=…) through "
            "the class's `expected_failures`."
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        cls = getattr(item, "cls", None)
        if not (isinstance(cls, type) and issubclass(cls, Suite)):
            continue
        whole: str = item.originalname  # pyright: ignore[reportAttributeAccessIssue]
        reason = cls.expected_failures.get(item.name) or cls.expected_failures.get(whole)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        for marker in item.iter_markers("agl_requires"):
            missing = [flag for flag in marker.args if flag not in cls.flags]
            if missing:
                item.add_marker(
                    pytest.mark.skip(reason=f"not claimed in {cls.__name__}.flags: {missing}")
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    new = any(marker.args[0] == SUITE_VERSION for marker in item.iter_markers("agl_since"))
    if new and report.failed and not item.config.getoption("--agl-strict"):
        report.outcome = "skipped"
        report.wasxfail = f"new in agl-testing {SUITE_VERSION}: counts from the next minor version"
        said = NewConformanceTestWarning(f"{item.nodeid} fails and will count: {call.excinfo}")
        with warnings.catch_warnings():
            # A project may turn warnings into errors; one raised here would end the whole run.
            warnings.simplefilter("always", NewConformanceTestWarning)
            warnings.warn(said, stacklevel=1)
    return report
