"""A pytest plugin that runs conformance suites in short form: each suite test once.

A suite repeats many tests for several values. With one value each, and without load, random
histories, several processes, faults and measured costs, the suites of all light packages together
take a minute or two.
"""

from __future__ import annotations

import re

import pytest

from agl_testing.suite import Suite

LONG_MODULES = re.compile(
    r"agl_testing\.(database|crashes)\b|agl_testing\.store\.(load|machine|concurrency)$"
)
LONG_TESTS = {"test_its_cost_is_linear", "test_a_killed_process_loses_no_call_that_returned"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: dict[tuple[object, str], pytest.Item] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not _is_short(item):
            continue
        kept.setdefault((item.cls, item.originalname), item)
    chosen = set(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept.values()


def _is_short(item: pytest.Function) -> bool:
    """Whether an item is a test of the kit that the short form has."""
    in_suite = isinstance(item.cls, type) and issubclass(item.cls, Suite)
    module = item.function.__module__
    # A value that only slow or timed tests have is not the one to keep.
    marked = any(map(item.get_closest_marker, ("slow", "timing")))
    long = marked or LONG_MODULES.match(module) or item.originalname in LONG_TESTS
    return in_suite and module.startswith("agl_testing.") and not long
