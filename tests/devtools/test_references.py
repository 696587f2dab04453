"""References in docstrings: the names exist, so that a reader and the site's pages find them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from devtools import packages

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?(agl_[\w.]+)`")
HEAVY = {package.module for package in packages.all_plugins() if package.heavy}
"""Their libraries are not in the environment of these tests."""


def references() -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each reference to a name of this repository."""
    for file in sorted([*(ROOT / "agl_core").rglob("*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        for match in REFERENCE.finditer(file.read_text(encoding="utf-8")):
            if match[1].partition(".")[0] not in HEAVY:
                yield str(file.relative_to(ROOT)), match[1]


@cache
def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(owner, part):
                return is_of_instances(owner, part)
            owner = getattr(owner, part)
        return True
    return False


def is_of_instances(owner: Any, name: str) -> bool:
    """Return whether instances of a class have an attribute that the class itself has not."""
    if not inspect.isclass(owner):
        return False
    annotated = any(name in vars(one).get("__annotations__", {}) for one in owner.__mro__)
    return annotated or bool(re.search(rf"self\.{name}\b", inspect.getsource(owner)))


def test_names_in_docstrings_exist():
    found = list(references())
    assert len(found) > 200
    assert [f"{place}: {name}" for place, name in found if not exists(name)] == []
