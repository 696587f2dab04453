"""The page of settings is current."""

from __future__ import annotations

from devtools import package_lists, settings_page


def test_the_page_of_settings_is_what_the_code_says() -> None:
    current = settings_page.PAGE.read_text(encoding="utf-8")
    new = [package.name for package in package_lists.unlisted()]
    assert current == settings_page.page(without=new), "run: python3 dev.py settings"


def test_options_of_a_package_can_be_left_out() -> None:
    page = settings_page.page(without=["agl-store-sqlite", "agl-proxy-direct"])
    assert "(agl-store-sqlite)" not in page
    assert "`agl proxy --api-key`" not in page
    assert "(agl-adapters)" in page


def test_it_lists_variables_of_the_core_and_of_commands() -> None:
    page = settings_page.page()
    assert "| `AGL_PLUGINS` |" in page
    assert "`agl proxy --api-key`" in page
    assert "| `trainer.n_runners` |" in page
