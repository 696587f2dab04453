"""The base of all conformance suites.

A suite is a class of tests. The author of a component subclasses it, supplies a fixture, and claims
capabilities in ``flags``. A test that needs a flag is skipped if the component does not claim it,
and the report shows the flag. There is no other way to switch a test off: the run fails if a
subclass overrides or deletes a suite test (:mod:`agl_testing.plugin`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest

__all__ = ["SUITE_VERSION", "Suite", "requires", "since"]

SUITE_VERSION = "0.1"
"""Minor version of the kit; a test marked :func:`since` this version only warns."""

F = TypeVar("F", bound=Callable[..., Any])


class Suite:
    """Base of all suites.

    Attributes:
        suite_name: The kind the suite is for, as reports name it; None for abstract bases.
        flags: Claims beyond the bare contract; see each suite's ``FLAGS``.
        expected_failures: Suite tests that are known to fail, with the reason: all cases of a test
            by its name, or one as ``name[case]``. They are run, and a pass fails the run.
        FLAGS: Every flag of the suite, with the meaning of its claim.
    """

    suite_name: ClassVar[str | None] = None
    flags: ClassVar[frozenset[str]] = frozenset()
    expected_failures: ClassVar[dict[str, str]] = {}
    FLAGS: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, test in vars(cls).items():
            # Mark the function, since subclasses do not inherit a module's mark.
            inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
            if name.startswith("test") and inspect.iscoroutinefunction(inner):
                pytest.mark.asyncio(test)
        unknown = set(cls.flags) - set(cls.FLAGS)
        if unknown:
            raise TypeError(
                f"{cls.__qualname__}.flags names {sorted(unknown)}, "
                f"but this suite knows {sorted(cls.FLAGS)}"
            )
        missing = [name for name in cls.expected_failures if not hasattr(cls, name.split("[")[0])]
        if missing:
            raise TypeError(f"{cls.__qualname__}.expected_failures names no test: {missing}")


def requires(*flags: str) -> Callable[[F], F]:
    """Mark a suite test as a test of components that claim these flags."""

    def mark(test: F) -> F:
        return pytest.mark.agl_requires(*flags)(test)

    return mark


def since(version: str) -> Callable[[F], F]:
    """Mark a suite test as new in a minor version of the kit, during which it only warns.

    Args:
        version: The minor version that brought the test, e.g. ``"0.2"``.
    """

    def mark(test: F) -> F:
        return pytest.mark.agl_since(version)(test)

    return mark
