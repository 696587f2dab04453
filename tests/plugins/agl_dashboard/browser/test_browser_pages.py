"""Every page in a real Chromium: what it shows, its address, its keys, its accessibility."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from agl_core import semconv
from agl_core.types import Span

from .conftest import DESKTOP, PHONE
from .site import Site
from .steps import Open, no_finding, settled

pytestmark = pytest.mark.heavy

PAGES = {
    "rollouts": ("/rollouts", "smallest room"),
    "rollout": ("/rollouts/{one}?span=0000000000000004", "response_token_ids"),
    "chat": ("/rollouts/{one}?view=Chat", "sampled tokens"),
    "resources-used": ("/rollouts/{one}?view=Resources", "prompt_template"),
    "json": ("/rollouts/{one}?view=JSON", '"max_attempts": 2'),
    "side-by-side": ("/rollouts/{one}?with={other}", "{other}"),
    "traces": ("/traces?rollout={one}", "find_rooms"),
    "training": ("/training?run=room-booking&batch=step-08", "step-08"),
    "prompts": ("/training?run=room-booking&batch=step-06&metric=loss", "Std. dev."),
    "runs": ("/runs", "room-booking"),
    "workers": ("/workers", "runner-3"),
    "resources": ("/resources", "system_prompt"),
    "settings": ("/settings", "Access token"),
}
"""Address and a text of each page."""


def address(site: Site, name: str) -> tuple[str, str]:
    """Return the address of a page and a text that it shows."""
    one, other = site.rollout_ids[-1], site.rollout_ids[-2]
    path, text = (part.replace("{one}", one).replace("{other}", other) for part in PAGES[name])
    return site.url + path, text


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_by_its_address_and_has_no_finding_of_axe(
    site: Site, open_page: Open, name: str
):
    url, text = address(site, name)
    page = open_page(url)
    settled(page, text)
    for viewport in (DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator("html")).to_have_attribute("data-theme", scheme)
            no_finding(page)
        # Nothing of the page lies to the right of the screen.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_back_button_undoes_each_choice(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page).to_have_url(re.compile(r"status=Failed$"))
    page.get_by_role("link", name=re.compile("^ro-")).first.click()
    expect(page.get_by_role("tab", name="Chat")).to_be_visible()
    page.get_by_role("tab", name="Chat").click()
    expect(page).to_have_url(re.compile(r"view=Chat$"))
    page.go_back()
    expect(page.get_by_role("tab", name="Trace")).to_have_attribute("aria-selected", "true")
    page.go_back()
    failed = page.get_by_role("button", name=re.compile("^Failed"))
    expect(failed).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(page).to_have_url(f"{site.url}/rollouts")


SORTED_BY_REWARD = """sign => {
    const texts = [...document.querySelectorAll(".rows-body .reward")].map((e) => e.textContent);
    const best = sign < 0 ? texts[0] : texts.at(-1);
    const rewards = texts.map(parseFloat).filter((reward) => !isNaN(reward));
    const sorted = rewards.every((one, i) => i === 0 || sign * (one - rewards[i - 1]) >= 0);
    return rewards.length > 10 && best === "1.000" && sorted;
}"""
"""Whether the rows are sorted by reward; -1 for the largest first."""


def test_rollouts_are_filtered_by_mode_and_sorted_by_reward_and_duration(
    site: Site, open_page: Open
):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.get_by_label("Mode").select_option("val")
    expect(page.locator(".page-head")).to_contain_text("24")
    expect(page).to_have_url(re.compile(r"mode=val$"))
    page.get_by_role("button", name="Reward").click()
    expect(page).to_have_url(re.compile(r"sort=-reward$"))
    page.wait_for_function(SORTED_BY_REWARD, arg=-1)
    page.get_by_role("button", name="Reward").click()
    page.wait_for_function(SORTED_BY_REWARD, arg=1)
    page.get_by_role("button", name="Duration").click()
    expect(page.get_by_role("columnheader", name="Duration")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_keyboard_reaches_everything(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next and previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("region", name="Selection")).to_contain_text("1 selected")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/rollouts/ro-"))
    expect(page.get_by_role("table", name="Spans")).to_contain_text("room_agent")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("region", name="Span", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("runner-2")
    expect(page.get_by_role("row")).to_have_count(2)  # the head, and the worker found
    expect(page).to_have_url(re.compile(r"q=runner-2$"))


def test_arrow_keys_choose_the_status_and_the_view(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts")
    settled(page, "smallest room")
    page.get_by_role("button", name=re.compile("^Queued")).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"status=Succeeded$"))
    page.goto(f"{site.url}/rollouts/{site.rollout_ids[-1]}")
    page.get_by_role("tab", name="Trace").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"view=JSON$"))
    expect(page.get_by_role("tabpanel", name="JSON")).to_contain_text('"max_attempts": 2')


def test_an_operation_has_the_name_that_its_program_gave_it(empty: Site, open_page: Open):
    rollout = empty.run(empty.store.start_rollout("book"))
    ids: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
    }
    named = {semconv.OPERATION_NAME: "search_rooms"}
    span = Span.from_attributes(attributes=named, name=semconv.SPAN_OPERATION, sequence_id=1, **ids)
    empty.run(empty.store.add_span(span))
    page = open_page(f"{empty.url}/rollouts/{rollout.rollout_id}")
    spans = page.get_by_role("table", name="Spans")
    expect(spans).to_contain_text("search_rooms")
    expect(spans).not_to_contain_text(semconv.SPAN_OPERATION)


def test_a_rollout_shows_its_trace_its_chat_and_its_tokens(site: Site, open_page: Open):
    url, _ = address(site, "rollout")
    page = open_page(url)
    settled(page, "response_token_ids")
    spans = page.get_by_role("table", name="Spans")
    for name in ("room_agent", "chat demo-7b", "find_rooms"):
        expect(spans).to_contain_text(name)
    # The tool call starts where the first model call ended.
    bars = {
        name: spans.get_by_role("row", name=re.compile(name)).first.locator(".bar-fill")
        for name in ("chat demo-7b", "find_rooms")
    }
    chat, tool = (bars[name].bounding_box() for name in ("chat demo-7b", "find_rooms"))
    assert chat and tool and abs(chat["x"] + chat["width"] - tool["x"]) < 4
    page.get_by_role("tab", name="Chat").click()
    call = page.get_by_role("article", name="Call 2")
    expect(call).to_contain_text("3 messages as before")
    expect(call).to_contain_text("Maple")
    expect(call).to_contain_text("reward")
    expect(page.get_by_role("article", name="Call 1")).to_contain_text("find_rooms")
    call.get_by_text("8 sampled tokens").click()
    tokens = call.get_by_role("region", name="Sampled tokens").locator(".tok")
    expect(tokens).to_have_count(8)
    shades = {token.get_attribute("data-shade") for token in tokens.all()}
    assert shades <= {"0", "1", "2", "3"}
    assert len(shades) > 1
    expect(tokens.first).to_have_attribute("title", re.compile(r"^101 · log-probability -\d"))


def test_the_training_page_draws_rewards_groups_and_prompts(site: Site, open_page: Open):
    url, text = address(site, "training")
    page = open_page(url)
    settled(page, text)
    chart = page.get_by_role("img", name="Mean reward of each batch")
    assert chart.locator("canvas").evaluate("canvas => canvas.width") > 300
    expect(page.get_by_role("row", name=re.compile("step-08"))).to_contain_text("8/8")
    groups = page.get_by_role("table").filter(has_text="Std. dev.")
    expect(groups.get_by_role("row")).to_have_count(3)  # the head, and two tasks
    members = groups.get_by_role("row").nth(1).get_by_role("link")
    expect(members).to_have_count(4)
    expect(members.first).to_have_attribute("href", re.compile(r"/rollouts/ro-\w+$"))
    prompt = page.get_by_role("region", name="Prompt", exact=True)
    expect(prompt.locator("ins", has_text="smallest")).to_be_visible()
    expect(prompt.locator("del", has_text="Answer")).to_be_visible()


def test_any_metric_of_a_run_is_drawn_over_its_steps(site: Site, open_page: Open):
    page = open_page(f"{site.url}/training?run=room-booking")
    settled(page, "4 over 60 steps")
    charts = page.locator(".metric")
    expect(charts).to_have_count(4)
    loss = page.get_by_role("img", name="loss over steps")
    assert loss.locator("canvas").evaluate("canvas => canvas.width") > 200
    page.get_by_role("searchbox", name="Search metrics").fill("val")
    expect(charts).to_have_count(1)
    expect(charts).to_contain_text("val/reward")
    expect(charts).to_contain_text(re.compile(r"last 0\.8\d\d"))
    expect(page).to_have_url(re.compile(r"metric=val$"))


def test_prompt_versions_are_a_tree_with_their_scores(site: Site, open_page: Open):
    page = open_page(f"{site.url}/training?run=room-booking")
    settled(page, "room-booking/v3")
    versions = page.get_by_role("list", name="Prompt versions").get_by_role("button")
    shown = [re.search(r"v\d", text) for text in versions.all_inner_texts()]
    assert [match and match[0] for match in shown] == ["v0", "v1", "v2", "v3"]
    left = [(version.bounding_box() or {})["x"] for version in versions.all()]
    assert left[0] < left[1] < left[2]
    assert left[3] == left[1]  # an edit of the first version, as v1
    expect(versions.nth(2)).to_contain_text("chosen by the run")
    expect(versions.nth(2)).to_contain_text("on 2 validation tasks")
    expect(page.get_by_text("room-booking/v2, edited from room-booking/v1")).to_be_visible()
    versions.nth(3).click()
    expect(page).to_have_url(re.compile(r"prompt=room-booking%2Fv3%2Fsystem_prompt$"))
    prompt = page.get_by_role("region", name="Prompt", exact=True)
    expect(prompt.locator("ins", has_text="Never")).to_be_visible()


def test_a_run_shows_its_parts_its_status_and_how_to_resume_it(site: Site, open_page: Open):
    page = open_page(f"{site.url}/runs")
    settled(page, "interrupted")
    parts = page.get_by_role("region", name="Parts of room-booking")
    algorithm = parts.get_by_role("row", name=re.compile("algorithm"))
    expect(algorithm).to_contain_text("GRPO")
    algorithm.locator("summary").click()
    expect(algorithm).to_contain_text('"learning_rate": 0.000001')
    for part in ("store", "tracer", "adapter", "llm proxy", "strategy"):
        expect(parts.get_by_role("rowheader", name=part, exact=True)).to_be_visible()
    expect(page.get_by_text("agl train rooms.toml --run room-booking --resume")).to_be_visible()


def test_spans_are_found_by_name_attribute_and_time(site: Site, open_page: Open):
    url, text = address(site, "traces")
    page = open_page(url)
    settled(page, text)
    search = page.get_by_role("searchbox")
    rows = page.get_by_role("table", name="Spans").get_by_role("row")
    search.fill("find_ROOMS")
    expect(rows).to_have_count(4)  # the head, the tool call, and the calls that name the tool
    search.fill("gen_ai.tool.name=find_rooms")
    expect(rows).to_have_count(2)
    began = rows.nth(1).get_by_role("cell").last.inner_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", began)
    search.fill(began)
    expect(rows.filter(has_text="find_rooms").first).to_be_visible()
    search.fill("1999-12-31")
    expect(page.get_by_text("No span matches")).to_be_visible()


def test_the_page_names_the_licences_of_its_libraries(site: Site, open_page: Open):
    page = open_page(f"{site.url}/settings")
    link = page.get_by_role("link", name="these libraries")
    text = page.request.get(link.evaluate("link => link.href")).text()
    for name in ("@base-ui/react", "react-dom", "uplot", "diff"):
        assert f"## {name} - " in text


def test_an_export_holds_the_selected_rollouts_with_their_spans(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts?sort=rollout_id")
    settled(page, "smallest room")
    boxes = page.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    lines = download.value.path().read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["rollout"]["rollout_id"] for row in rows] == sorted(site.rollout_ids)[:2]
    assert all(len(row["spans"]) >= 4 for row in rows)
    expect(page.get_by_text(re.compile(r"Exported 2 rollouts, \d+ spans"))).to_be_visible()
