"""Steps that several tests take: wait for a page, turn to another one, scan it."""

from __future__ import annotations

import re
from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

Open = Callable[..., Page]
"""The fixture ``open_page``."""


def settled(page: Page, text: str) -> None:
    """Wait until a page shows its data and is live."""
    connection = page.locator(".connection")
    expect(connection).to_have_attribute("data-state", "live")
    expect(page.locator("main")).to_contain_text(text)
    expect(connection).to_have_attribute("aria-busy", "false")
    expect(page.get_by_text(re.compile("^(Loading|Reading)"))).to_have_count(0)


def visit(page: Page, name: str) -> None:
    """Choose a page in the menu and wait for it: the page before it stays until it is ready."""
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def confirm(page: Page, verb: str) -> None:
    """Press the button that cancels or retries, and confirm it in the dialog that asks."""
    page.get_by_role("button", name=verb, exact=True).click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("button", name=re.compile(f"^{verb} ")).click()


def no_finding(page: Page) -> None:
    """Scan a page for what keeps people from using it."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
