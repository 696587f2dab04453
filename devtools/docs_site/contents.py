"""The contents of the site: its navigation, and the page that lists all packages.

Both are derived from the files and the packages of the repository when the site is built, so they
have a new package at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devtools import package_lists, packages, public_names

PACKAGES = Path("docs/packages.md")
"""The page that lists all packages; it is only on the site."""

Nav = list[Any]


def write_packages(file: Path) -> None:
    """Write the page that lists all packages."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(packages_page(), encoding="utf-8")


def packages_page() -> str:
    """Return the page that lists all packages, each with its plugins and the names it exports."""
    described = {module.name for module in public_names.public_modules()}
    rows: list[tuple[str, str, str]] = []
    for package in packages.all_plugins():
        link = f"[{package.name}](../plugins/{package.label}/README.md)"
        plugins = ", ".join(f"`{point}`" for point in package.plugins)
        names = f"[names](reference/{package.module}.md)" if package.module in described else ""
        rows.append((link, plugins, ". ".join(filter(None, (package.description, names)))))
    table = package_lists.table(("package", "plugins", "what it is"), rows)
    return f"# Packages\n\nEvery package is installed alone.\n{table}"


def navigation(nav: Nav, pages: list[Path], reference: Nav) -> Nav:
    """Return the navigation: that of mkdocs.yml, and what is added without naming it there.

    Added are the reference, the packages with their READMEs, the examples, and new pages of
    ``docs/``.
    """
    listed = set(_pages_in(nav))
    new = [p.as_posix() for p in pages if p.parent == Path("docs") and p.as_posix() not in listed]
    of_plugins = [p.as_posix() for p in pages if p.match("plugins/*/*.md")]
    of_examples = [p.as_posix() for p in pages if p.match("examples/*/README.md")]
    added = {
        "Guides": new,
        "Reference": reference,
        "Packages": [PACKAGES.as_posix(), *of_plugins],
        "Examples": of_examples,
    }
    filled = []
    for entry in nav:
        (title, below), *_ = entry.items() if isinstance(entry, dict) else [(entry, None)]
        if title in added:
            entry = {title: [*(below or []), *added.pop(title)]}
        filled.append(entry)
    if added:
        sys.exit(f"mkdocs.yml: nav lacks {', '.join(added)}")
    return filled


def _pages_in(nav: Nav) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from _pages_in(below if isinstance(below, list) else [below])
