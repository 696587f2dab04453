"""The check of ``agl doctor`` for the dashboard's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agl_core.doctor import Finding
from agl_dashboard.app import STATIC

__all__ = ["check_page"]


def check_page(static: Path = STATIC) -> Iterator[Finding]:
    """Yield whether the built page is there: an installation from a damaged clone lacks it."""
    if (static / "index.html").is_file():
        yield Finding("ok", "dashboard", "agl dashboard FILE.db shows a store as a web page")
    else:
        yield Finding(
            "error",
            "dashboard",
            f"agl-dashboard is installed without its page: {static} has no index.html",
            "install agl-dashboard again; in a clone, first run python3 dev.py dashboard",
            ("agl-dashboard",),
        )
