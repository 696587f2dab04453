"""A pytest plugin that runs conformance suites in short form: each suite test once.

A suite repeats many tests for several values. With one value each, and without what needs an idle
machine, the suites of all light packages together take about a minute.
"""

from __future__ import annotations

import pytest

from agl_testing.suite import Suite


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: dict[tuple[object, str], pytest.Item] = {}
    for item in items:
        cls = getattr(item, "cls", None)
        if not (isinstance(cls, type) and issubclass(cls, Suite)):
            continue
        kept.setdefault((cls, getattr(item, "originalname", item.name)), item)
    chosen = list(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen
