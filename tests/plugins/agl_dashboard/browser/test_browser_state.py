"""The address holds what a page shows; the settings hold how; a phone shows it too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import PHONE
from .site import Site
from .steps import Open, no_finding, settled, visit

pytestmark = pytest.mark.heavy


def press(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()


def rollouts(page: Page, other: str) -> None:
    page.get_by_role("button", name=re.compile("^Succeeded")).click()
    page.get_by_label("Mode").select_option("val")
    press(page, "Reward")
    page.get_by_role("searchbox", name="Search by id").fill("ro-")


def rollout(page: Page, other: str) -> None:
    page.get_by_label("Compare with rollout").fill(other)
    page.keyboard.press("Enter")
    tables = page.get_by_role("table", name="Spans")
    for table in (tables.first, tables.nth(1)):
        table.get_by_role("button", name="Fold room_agent").click()
    tables.first.get_by_role("button", name="agentlightning.annotation").click()


def chats(page: Page, other: str) -> None:
    page.get_by_label("Compare with rollout").fill(other)
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Chat").first.click()


def traces(page: Page, other: str) -> None:
    page.get_by_label("Rollout", exact=True).fill(other)
    page.keyboard.press("Enter")
    page.get_by_role("searchbox").fill("chat")
    press(page, "Took", "Took")


def training(page: Page, other: str) -> None:
    press(page, "step-06")
    page.get_by_role("searchbox").fill("loss")
    page.get_by_role("list", name="Prompt versions").get_by_role("button").last.click()


def workers(page: Page, other: str) -> None:
    page.get_by_role("searchbox").fill("runner-2")


def resources(page: Page, other: str) -> None:
    page.get_by_role("button", name=re.compile("room-booking.v2")).click()
    page.get_by_label("Compare with").select_option("room-booking/v0")


CHOICES: dict[str, tuple[Callable[[Page, str], None], set[str]]] = {
    "/rollouts": (rollouts, {"status", "mode", "sort", "q"}),
    "/rollouts/{one}": (rollout, {"with", "fold", "fold2", "span"}),
    "/rollouts/{one}?view=JSON": (chats, {"with", "view"}),
    "/traces": (traces, {"rollout", "q", "sort"}),
    "/training?run=room-booking": (training, {"run", "batch", "metric", "prompt"}),
    "/workers": (workers, {"q"}),
    "/resources": (resources, {"id", "with"}),
}
"""By page: what chooses, and where the address holds it."""


@pytest.mark.parametrize("path", CHOICES)
def test_each_choice_is_in_the_address(site: Site, open_page: Open, path: str):
    one, other = site.rollout_ids[-1], site.rollout_ids[-2]
    choose, names = CHOICES[path]
    page = open_page(site.url + path.replace("{one}", one))
    settled(page, "")
    before = page.evaluate(SHOWN)
    choose(page, other)
    page.wait_for_function(
        "names => names.every(n => location.search.includes(n + '='))", arg=[*names]
    )
    page.wait_for_function(f"before => ({SHOWN})() !== before", arg=before)
    settled(page, "")
    assert {name for name, _ in parse_qsl(urlsplit(page.url).query)} == names
    again = open_page(page.url)
    settled(again, "")
    again.wait_for_function(f"wanted => ({SHOWN})() === wanted", arg=page.evaluate(SHOWN))


SHOWN = """() => {
    const main = document.querySelector("main");
    const fields = [...main.querySelectorAll("input, select")].map((field) => field.value);
    return main.innerText.replace(/\\d+ (s|min) ago/g, "") + "\\n" + fields.join("\\n");
}"""
"""Returns the text of a page, without what changes by itself, and the content of its fields."""


def test_choices_made_before_the_page_is_drawn_are_kept(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.evaluate(
        """() => {
            const named = (name) => (button) => button.textContent.startsWith(name);
            const buttons = [...document.querySelectorAll("main button")];
            buttons.find(named("Succeeded")).click();
            buttons.find(named("Reward")).click();
        }"""
    )
    expect(page).to_have_url(re.compile(r"status=Succeeded&sort=-reward$"))
    page.evaluate(
        """() => {
            const field = document.querySelector("input[type=search]");
            const value = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
            const type = (text) => {
                value.set.call(field, text);
                field.dispatchEvent(new Event("input", {bubbles: true}));
            };
            const replaceState = history.replaceState;
            history.replaceState = (...change) => {
                replaceState.apply(history, change);
                history.replaceState = replaceState;
                type("ro-0");  // the reader types on, and the page does not show "ro-" yet
            };
            type("ro-");
        }"""
    )
    expect(page).to_have_url(re.compile(r"q=ro-0$"))
    expect(page.get_by_role("searchbox", name="Search by id")).to_have_value("ro-0")


def test_the_back_button_returns_to_the_row(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts?sort=-rollout_id")
    settled(page, "smallest room")
    last = min(site.rollout_ids)
    table = page.get_by_role("table", name="Rollouts")
    table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
    table.get_by_role("link", name=last).click()
    expect(page.get_by_role("heading", name=last)).to_be_visible()
    page.go_back()
    row = table.get_by_role("row").filter(has_text=last)
    expect(row).to_have_attribute("data-current", "true")
    expect(row).to_be_in_viewport()
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page).to_have_url(re.compile(r"sort=-rollout_id&status=Failed$"))
    expect(table.locator("[data-current]")).to_have_count(0)


def test_two_rollouts_are_side_by_side(site: Site, open_page: Open):
    one, other = site.rollout_ids[-1], site.rollout_ids[-2]
    page = open_page(f"{site.url}/rollouts/{one}")
    settled(page, "room_agent")
    page.get_by_label("Compare with rollout").fill(other)
    page.keyboard.press("Enter")
    left, right = (page.locator(".one").nth(place) for place in (0, 1))
    expect(right.get_by_role("heading", name=other)).to_be_visible()
    places = [(part.bounding_box() or {}) for part in (left, right)]
    assert places[0]["x"] + places[0]["width"] <= places[1]["x"]
    assert places[0]["y"] == places[1]["y"]
    left.get_by_role("tab", name="Chat").click()
    for part, name in ((left, one), (right, other)):
        expect(part.get_by_role("article", name="Call 2")).to_contain_text("Maple")
        rollout = site.run(site.store.get_rollout_by_id(name))
        assert rollout is not None
        expect(part.locator(".task")).to_contain_text(rollout.input["question"])
    # Each half has a span of its own.
    right.get_by_role("button", name="Span").first.click()
    expect(right.get_by_role("region", name="Span", exact=True)).to_be_visible()
    expect(left.get_by_role("region", name="Span", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Close comparison").click()
    expect(page).to_have_url(f"{site.url}/rollouts/{one}")


def test_settings_change_how_pages_look_and_stay(site: Site, open_page: Open):
    zone = {"timezone_id": "Asia/Tokyo", "color_scheme": "light"}
    page = open_page(f"{site.url}/settings", **zone)
    created = "/rollouts/" + site.rollout_ids[-1]

    def hour() -> int:
        page.goto(site.url + created)
        facts = page.locator(".facts div").filter(has_text="Created").locator("dd").first
        return int(facts.inner_text()[11:13])

    local = hour()
    page.goto(f"{site.url}/settings")
    page.get_by_label("Time zone").select_option("UTC")
    page.get_by_label("Appearance").select_option("Dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert (local - hour()) % 24 == 9
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


DRAWN = """() => {
    const style = getComputedStyle(document.documentElement);
    const wanted = style.getPropertyValue("--series-1").trim().match(/[0-9a-f]{2}/g);
    const [red, green, blue] = wanted.map((pair) => parseInt(pair, 16));
    const canvas = document.querySelector(".plot canvas");
    if (!canvas) return false;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4)
        if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) return true;
    return false;
}"""
"""Whether the first chart has a line in the theme's color."""


def test_charts_follow_the_theme_of_the_system(site: Site, open_page: Open):
    page = open_page(f"{site.url}/training?run=room-booking", color_scheme="light")
    settled(page, "step-08")
    page.wait_for_function(DRAWN)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_function(DRAWN)


def test_a_phone_reads_a_rollout_from_the_list_to_its_chat(site: Site, open_page: Open):
    page = open_page(f"{site.url}/workers", viewport=PHONE, has_touch=True, is_mobile=True)
    settled(page, "runner-3")
    expect(page.get_by_role("link", name="Rollouts")).to_be_hidden()
    page.get_by_role("button", name="Menu").tap()
    page.get_by_role("link", name="Rollouts").tap()
    expect(page.get_by_role("link", name="Workers")).to_be_hidden()
    row = page.get_by_role("row").nth(1)
    for column in (".c-status", ".c-input", ".reward"):
        cell = row.locator(column).bounding_box()
        assert cell and cell["x"] >= 0 and cell["x"] + cell["width"] <= PHONE["width"]
    row.locator(".c-input").tap()
    expect(page).to_have_url(re.compile(r"/rollouts/ro-"))
    page.get_by_role("tab", name="Chat").tap()
    answer = page.get_by_role("article", name="Call 2").locator("[data-role=assistant]").last
    answer.scroll_into_view_if_needed()
    expect(answer).to_be_in_viewport()
    size = answer.locator(".text").evaluate("text => parseFloat(getComputedStyle(text).fontSize)")
    assert size >= 12
    box = answer.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    assert page.evaluate("visualViewport.scale") == 1


def test_a_closed_dialog_takes_no_keys(site: Site, open_page: Open):
    """A key may follow the one that closes the dialog before the next frame."""
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate(
        """async () => {
            for (const key of ["Escape", "j"]) {
                const event = new KeyboardEvent("keydown", {key, bubbles: true});
                document.activeElement.dispatchEvent(event);
                await null;
            }
        }"""
    )
    expect(page.get_by_role("row").nth(1)).to_have_attribute("data-current", "true")


def test_a_million_rollouts_are_reached_by_wheel_and_keys(site: Site, open_page: Open):
    """More rows than a browser can stack: a row takes less of the scrolled height than it has."""
    one = site.run(site.store.get_rollout_by_id(site.rollout_ids[0]))
    assert one is not None

    def answer(route: Route) -> None:
        query: Any = route.request.post_data_json
        places = range(query["offset"], query["offset"] + query["limit"])
        ids = [{"rollout_id": f"ro-{place:06}"} for place in places]
        items = [{**one.model_dump(mode="json"), **each} for each in ids]
        route.fulfill(json={"items": items, "total": 1_000_000, "offset": 0, "limit": 100})

    page = open_page("about:blank")
    page.route(re.compile("/rollouts/search$"), answer)
    page.goto(f"{site.url}/rollouts")
    table = page.get_by_role("table", name="Rollouts")
    expect(table).to_contain_text("ro-000000")
    for _ in range(60):
        page.keyboard.press("j")
    current = table.locator("[data-current]")
    expect(current).to_contain_text("ro-000059")
    expect(current).to_be_in_viewport(ratio=0.9)
    table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
    last = table.get_by_role("row").filter(has_text="ro-999999")
    expect(last).to_be_in_viewport(ratio=0.9)
    expect(table.get_by_role("row").filter(has_text="ro-999990")).to_be_in_viewport()


def test_what_opens_on_a_page_has_no_finding_of_axe(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.get_by_role("checkbox").nth(1).check()
    expect(page.get_by_role("region", name="Selection")).to_be_visible()
    no_finding(page)
    page.get_by_role("heading", name="Rollouts").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    no_finding(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("alertdialog")).to_be_visible()
    no_finding(page)
    page.get_by_role("button", name="Back").click()
    with page.expect_download():
        page.get_by_role("button", name="Export").click()
    expect(page.get_by_text("Exported 1 rollouts")).to_be_visible()
    page.get_by_role("button", name="Live").hover()
    expect(page.get_by_text("Changes appear as they happen")).to_be_visible()
    no_finding(page)
    page.goto(f"{site.url}/rollouts/{site.rollout_ids[-1]}")
    page.get_by_role("link", name="All rollouts").hover()
    expect(page.locator(".hint")).to_have_text("All rollouts")
    no_finding(page)
    page.set_viewport_size(PHONE)
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Workers")).to_be_visible()
    no_finding(page)
    page.goto(f"{site.url}/nowhere")
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    no_finding(page)


EMPTY = {
    "Rollouts": "No rollouts yet",
    "Training": "No rollouts yet",
    "Traces": "0 of 0 spans",
    "Runs": "No named runs",
    "Workers": "No worker has reported yet",
    "Resources": "No resources yet",
}


def test_pages_without_data_say_so_and_have_no_finding_of_axe(empty: Site, open_page: Open):
    page = open_page(f"{empty.url}/rollouts")
    for name, text in EMPTY.items():
        visit(page, name)
        settled(page, text)
        no_finding(page)


def test_a_page_that_waits_or_fails_has_its_heading_and_no_finding_of_axe(
    empty: Site, open_page: Open
):
    held: list[Route] = []
    page = open_page("about:blank", allow=("Failed to load resource",))
    page.route(re.compile("/v1/agl/training$"), lambda route: held.append(route))
    try:
        with page.expect_request(re.compile("/v1/agl/training$")):
            page.goto(f"{empty.url}/training")
        heading = page.get_by_role("heading", name="Training", level=1)
        expect(page.get_by_text("Reading rewards")).to_be_visible()
        expect(heading).to_be_visible()
        no_finding(page)
        held.pop(0).fulfill(status=422, json={"detail": "no rewards today"})
        expect(page.get_by_role("alert")).to_contain_text("no rewards today")
        expect(heading).to_be_visible()
        no_finding(page)
    finally:
        page.unroute_all()
        for route in held:
            route.abort()
