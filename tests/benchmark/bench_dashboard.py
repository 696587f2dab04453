"""Measures the dashboard with many rollouts in a real Chromium.

``python3 dev.py bench dashboard``; ``AGL_BENCH_ROLLOUTS`` is the number of rollouts in the SQLite
file, 100,000 by default, and ``AGL_BENCH_SPANS`` the number of spans of each, 60 by default, which
take 7 GB and minutes to write; ``AGL_BENCH_FILE`` names a file to keep and to use again. The
environment ``.venv`` needs Playwright, the machine Chromium.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="install playwright in .venv")
sys.path.insert(0, str(Path(__file__).parent))

from bench_rollout_pages import fill
from playwright.sync_api import Browser, Page, expect, sync_playwright  # pyright: ignore[reportMissingImports]

from agl_store_sqlite import SqliteLightningStore
from tests.plugins.agl_dashboard.browser.conftest import DESKTOP
from tests.plugins.agl_dashboard.browser.site import Site
from tests.plugins.agl_dashboard.browser.test_browser_size import sixty, tasks_while_scrolling

pytestmark = pytest.mark.benchmark

ROLLOUTS = int(os.environ.get("AGL_BENCH_ROLLOUTS", "100000"))
SPANS_EACH = int(os.environ.get("AGL_BENCH_SPANS", "60"))
TIMES = 3


def add_spans(path: Path) -> None:
    """Give each rollout the same spans, in SQL: through the store it would take hours."""
    ids = {"rollout_id": "@rollout", "attempt_id": "at"}
    spans = [span.model_copy(update=ids) for span in sixty(random.Random(1))[:SPANS_EACH]]
    with sqlite3.connect(path) as file:
        file.execute("CREATE TEMP TABLE made (number, trace, span, name, began, ended, payload)")
        file.executemany(
            "INSERT INTO made VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    *(span.sequence_id, span.trace_id, span.span_id, span.name),
                    *(span.start_time, span.end_time, span.model_dump_json()),
                )
                for span in spans
            ),
        )
        file.execute(
            "INSERT INTO spans SELECT (r.ordinal << 32) + number, r.ordinal, 'at', number, trace, "
            "span, NULL, name, began, ended, "
            "CAST(replace(payload, '@rollout', r.rollout_id) AS BLOB) FROM rollouts r, made"
        )
        count = ROLLOUTS * len(spans)
        file.execute("UPDATE counters SET value = ? WHERE name = 'spans'", (count,))
    file.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    kept = os.environ.get("AGL_BENCH_FILE")
    path = Path(kept) if kept else tmp_path_factory.mktemp("dashboard") / "store.db"
    if not path.exists():
        asyncio.run(fill(path, ROLLOUTS))
        add_spans(path)
    print(f"\n{ROLLOUTS:,} rollouts of {SPANS_EACH} spans: {path.stat().st_size / 1e9:.1f} GB")
    site = Site(SqliteLightningStore(path))
    yield site
    site.close()
    if not kept:
        path.unlink()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


def total(page: Page) -> None:
    """Wait until the list shows rollouts."""
    expect(page.locator(".page-head")).to_contain_text(f"{ROLLOUTS:,}", timeout=60_000)
    expect(page.get_by_role("row").nth(10)).to_contain_text("question")


def loaded(page: Page) -> None:
    expect(page.locator(".rows-body")).to_contain_text("question", timeout=60_000)
    expect(page.get_by_text("Loading")).to_have_count(0, timeout=60_000)


def measured(what: str, run: Callable[[], Any]) -> None:
    """Print the seconds of each run of a function."""
    took: list[float] = []
    for _ in range(TIMES):
        began = time.monotonic()
        run()
        took.append(time.monotonic() - began)
    print(f"{what}: {', '.join(f'{each:.2f}' for each in took)} s", flush=True)


def test_rollouts(site: Site, browser: Browser) -> None:
    page = browser.new_page(viewport=DESKTOP)

    def opened(path: str, shown: Callable[[Page], None]) -> None:
        nonlocal page
        page.close()
        page = browser.new_page(viewport=DESKTOP)  # with a cache of its own
        page.goto(f"{site.url}{path}")
        shown(page)

    measured("first page", lambda: opened("/rollouts", total))
    for query in ("sort=-reward", "sort=-duration", "mode=val", "status=Failed", "q=ro-00"):
        measured(f"  {query}", lambda query=query: opened(f"/rollouts?{query}", loaded))
    link = page.get_by_role("link", name=re.compile("^ro-")).first.get_attribute("href")

    def spans(page: Page) -> None:
        rows = page.get_by_role("table", name="Spans")
        expect(rows).to_have_attribute("aria-rowcount", str(SPANS_EACH + 1))
        expect(rows.get_by_role("row").nth(min(5, SPANS_EACH))).to_be_visible()

    measured(f"a rollout of {SPANS_EACH} spans", lambda: opened(f"/{link}", spans))

    opened("/rollouts", total)
    scroll(page, browser)


def test_training(site: Site, browser: Browser) -> None:
    def opened() -> None:
        page = browser.new_page(viewport=DESKTOP)
        page.goto(f"{site.url}/training")
        expect(page.get_by_role("row").nth(1)).to_be_visible()
        expect(page.get_by_text("Reading rewards")).to_have_count(0, timeout=3_600_000)
        page.close()

    measured("training, with every reward read", opened)


def scroll(page: Page, browser: Browser) -> None:
    """Print the longest tasks of the page while a wheel scrolls it, and after a jump to the end."""
    table = page.get_by_role("table", name="Rollouts")
    tasks = tasks_while_scrolling(page, browser, lambda: loaded(page))
    print(f"longest tasks while scrolling: {', '.join(f'{each:.0f}' for each in tasks[:5])} ms")
    began = time.monotonic()
    table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
    expect(page.locator(f"[aria-rowindex='{ROLLOUTS + 1}']")).to_contain_text("question")
    print(f"jump to the end: {time.monotonic() - began:.2f} s")
