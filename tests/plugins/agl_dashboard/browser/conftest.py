"""A real headless Chromium, and pages whose console must stay free of errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from agl_store_memory import InMemoryLightningStore

from ..sample import fill
from .site import Site

# Only the environment of `dev.py heavy` has Playwright.
collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]

DESKTOP: Final[Any] = {"width": 1360, "height": 860}
PHONE: Final[Any] = {"width": 390, "height": 780}
PATIENCE_MS: Final = 60_000
"""How long a test waits for what must come, on a machine with much other work."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright; `dev.py heavy` installs both."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # CI runs as root in a container, where Chromium's sandbox cannot start.
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server whose store is as a training leaves it."""
    site = Site(InMemoryLightningStore())
    site.rollout_ids = site.run(fill(site.store))
    yield site
    site.close()


@pytest.fixture
def empty() -> Iterator[Site]:
    """A server whose store is empty. Name it before ``open_page``, so that pages close first."""
    site = Site(InMemoryLightningStore())
    yield site
    site.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages in a fresh browser context; errors in their consoles fail the test."""
    contexts: list[Any] = []
    problems: list[str] = []
    expected: list[str] = []

    def opened(url: str, *, viewport: Any = None, allow: tuple[str, ...] = (), **how: Any) -> Any:
        """Open a page.

        Args:
            url: Its address.
            viewport: Its size; a desktop's by default.
            allow: Parts of console messages that the test provokes.
            how: Options of the browser's context.
        """
        expected.extend(allow)
        context = chromium.new_context(viewport=viewport or DESKTOP, **how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)

        def console(message: Any) -> None:
            if message.type in ("error", "warning"):
                problems.append(f"{message.text} ({message.location.get('url')})")

        page.on("console", console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    unexpected = [text for text in problems if not any(part in text for part in expected)]
    assert unexpected == []


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """The page that is tested is the built one."""
    import agl_dashboard.app

    assert (Path(agl_dashboard.app.STATIC) / "index.html").is_file(), "run dev.py dashboard"
