"""Writes the pictures of ``docs/dashboard.md``: every page, light and dark.

From the repository's root, with the page built (``python3 dev.py dashboard``), in an environment
with the ``test`` extra of agl-dashboard::

    python -m tests.plugins.agl_dashboard.browser.screenshots
"""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from agl_store_memory import InMemoryLightningStore

from ..sample import fill
from .conftest import DESKTOP
from .site import Site
from .steps import settled
from .test_browser_pages import PAGES, address

FOLDER = Path("docs/images/dashboard")
QUALITY = 60


def main() -> None:
    site = Site(InMemoryLightningStore())
    site.rollout_ids = site.run(fill(site.store))
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in PAGES:
            url, text = address(site, name)
            page = browser.new_page(viewport=DESKTOP)
            page.goto(url)
            settled(page, text)
            if name == "chat":
                page.get_by_text("sampled tokens").last.click()
                page.get_by_role("region", name="Sampled tokens").scroll_into_view_if_needed()
            if name == "prompts":
                page.get_by_role("list", name="Prompt versions").scroll_into_view_if_needed()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                expect(page.locator("html")).to_have_attribute("data-theme", scheme)
                devtools = page.context.new_cdp_session(page)
                picture = devtools.send(
                    "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
                )
                file = FOLDER / f"{name}-{scheme}.webp"
                file.write_bytes(base64.b64decode(picture["data"]))
            page.close()
        browser.close()
    site.close()


if __name__ == "__main__":
    main()
