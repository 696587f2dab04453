"""The page on the plugin API lists exactly the names whose docstrings say that they may change."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from devtools import public_names

PAGE = Path(__file__).parents[2] / "docs/plugins/api.md"
MARK = "Experimental: a release may change it."


def marked() -> Iterator[str]:
    for module in public_names.public_modules():
        if not module.name.startswith("agl_core"):
            continue
        for name in module.names:
            thing = getattr(import_module(module.name), name)
            if not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            if MARK in (inspect.getdoc(thing) or ""):
                yield f"{module.name}.{name}"
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if MARK in (inspect.getdoc(value) or "") and inspect.isroutine(value):
                    yield f"{module.name}.{name}.{member}"


def test_experimental_names_are_those_that_the_page_lists():
    listed = re.findall(
        r"^\| `(agl_core[\w.]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(listed) == set(marked())
