"""Tokens, servers that go away or are of an older version, and hostile content."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from agl_core.types import PromptTemplate
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs, mint_token
from agl_store_http import LightningStoreClient
from agl_store_http.server.replies.pages import MAX_READ_ITEMS
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_store_http.older_server import OlderApp

from ..sample import fill, model_call, trace
from .site import Site
from .steps import Open, confirm, visit

pytestmark = pytest.mark.heavy

SECRET = "a secret of more than sixteen characters"
REFUSED = "Failed to load resource"
"""What Chromium writes to the console when a request gets no reply, or one that is an error."""


@pytest.fixture
def locked() -> Iterator[Site]:
    site = Site(InMemoryLightningStore(), SECRET)
    site.rollout_ids = site.run(fill(site.store, batches=2))
    yield site
    site.close()


def state(page: Page, wanted: str) -> None:
    expect(page.locator(".connection")).to_have_attribute("data-state", wanted)


def enter(page: Page, token: str) -> None:
    """Enter a token under Settings."""
    page.get_by_role("link", name="Settings").click()
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Save").click()


def test_without_a_token_the_page_asks_for_one_and_shows_nothing(locked: Site, open_page: Open):
    page = open_page(f"{locked.url}/rollouts", allow=(REFUSED,))
    state(page, "unauthorized")
    assert locked.rollout_ids[-1] not in page.content()
    page.get_by_role("link", name="Enter a token").click()
    enter(page, SECRET)
    state(page, "live")
    page.get_by_role("link", name="Rollouts").click()
    expect(page.get_by_text(locked.rollout_ids[-1])).to_be_visible()
    # The token goes to the server in a header and is in no address.
    assert SECRET not in page.url


def test_a_read_token_sees_everything_and_changes_nothing(locked: Site, open_page: Open):
    page = open_page(f"{locked.url}/settings", allow=(REFUSED,))
    enter(page, mint_token(SECRET, "read", lifetime=60))
    state(page, "live")
    one = locked.rollout_ids[-1]
    before = locked.run(locked.store.get_rollout_by_id(one))
    for name, text in {
        "Rollouts": one,
        "Training": "step-01",
        "Traces": "find_rooms",
        "Runs": "room-booking",
        "Workers": "runner-0",
        "Resources": "system_prompt",
    }.items():
        visit(page, name)
        expect(page.locator("main")).to_contain_text(text)
    page.goto(f"{locked.url}/rollouts/{one}")
    confirm(page, "Retry")
    expect(page.get_by_role("alert")).to_contain_text("This token may only read")
    assert locked.run(locked.store.get_rollout_by_id(one)) == before


def test_a_read_token_sees_more_spans_than_one_reply_has(locked: Site, open_page: Open):
    async def filled() -> str:
        rollout = await locked.store.start_rollout({"question": "large"})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        span = trace(*ids, "large", None, random.Random(1))[0]
        await locked.store.add_many_spans(
            [
                span.model_copy(update={"span_id": f"{number:016x}", "sequence_id": number})
                for number in range(1, MAX_READ_ITEMS + 2)
            ]
        )
        await locked.store.update_attempt(*ids, status="succeeded")
        return rollout.rollout_id

    rollout_id = locked.run(filled())
    page = open_page(f"{locked.url}/settings", allow=(REFUSED,))
    enter(page, mint_token(SECRET, "read", lifetime=600))
    state(page, "live")
    page.goto(f"{locked.url}/rollouts/{rollout_id}")
    spans = page.get_by_role("table", name="Spans")
    expect(spans).to_have_attribute("aria-rowcount", str(MAX_READ_ITEMS + 2))  # and the head


def test_an_expired_token_is_said_and_a_new_one_goes_on(
    locked: Site, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    page = open_page(f"{locked.url}/settings", allow=(REFUSED,))
    enter(page, mint_token(SECRET, "read", lifetime=600))
    state(page, "live")
    page.get_by_role("link", name="Rollouts").click()
    expect(page.get_by_text(locked.rollout_ids[-1])).to_be_visible()
    later = time.time() + 3600
    monkeypatch.setattr("agl_serving.tokens.time.time", lambda: later)
    queued = locked.run(locked.store.enqueue_rollout("new"))  # its event meets the old token
    state(page, "unauthorized")
    expect(page.get_by_text("the token has expired")).to_be_visible()
    enter(page, mint_token(SECRET, "read", lifetime=60))
    state(page, "live")
    page.get_by_role("link", name="Rollouts").click()
    expect(page.get_by_text(queued.rollout_id)).to_be_visible()


def test_a_server_that_returns_is_found_again(open_page: Open):
    site = Site(InMemoryLightningStore())
    try:
        page = open_page(f"{site.url}/rollouts", allow=(REFUSED, "ERR_"))
        state(page, "live")
        site.stop()
        state(page, "offline")
        expect(page.get_by_text("The page tries again by itself")).to_be_visible()
        queued = site.run(site.store.enqueue_rollout("while it was away"))
        site.start()
        state(page, "live")
        expect(page.get_by_text(queued.rollout_id)).to_be_visible()
        expect(page.get_by_text("The page tries again by itself")).to_have_count(0)
    finally:
        site.close()


LATER_ROUTES = re.compile(
    r"/v1/agl/(events|training|rollouts/counts|rollouts/summaries|rollouts/[^/]+/calls)$|/calls\?"
)


def test_an_older_server_is_polled_and_shows_what_it_has(site: Site, open_page: Open):
    """Version 0.3 has no events and none of the routes for pages."""
    page = open_page("about:blank", allow=(REFUSED,))
    page.route(LATER_ROUTES, lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
    page.goto(f"{site.url}/rollouts")
    state(page, "polling")
    one = site.rollout_ids[-1]
    expect(page.get_by_text(one)).to_be_visible()
    queued = site.run(site.store.enqueue_rollout("found by asking again"))
    expect(page.get_by_text(queued.rollout_id)).to_be_visible()
    site.run(site.store.update_rollout(queued.rollout_id, status="cancelled"))
    page.goto(f"{site.url}/rollouts/{one}?view=Chat")
    expect(page.get_by_text("This server is of an older version")).to_be_visible()
    page.get_by_role("tab", name="Trace").click()
    expect(page.get_by_role("table", name="Spans")).to_contain_text("find_rooms")
    page.get_by_role("link", name="Training").click()
    expect(page.get_by_text("This server is of an older version")).to_be_visible()
    for name, text in {
        "Runs": "room-booking",
        "Workers": "runner-0",
        "Traces": "find_rooms",
    }.items():
        visit(page, name)
        expect(page.locator("main")).to_contain_text(text)


@pytest.fixture
def in_front(site: Site) -> Iterator[Site]:
    """The page before a server of version 0.3, as ``agl dashboard URL`` serves it."""
    launcher = PythonServerLauncher(OlderApp(site.store), PythonServerLauncherArgs())
    site.run(launcher.start())
    front = Site(LightningStoreClient(launcher.endpoint))
    yield front
    front.close()
    site.run(launcher.stop())


def test_the_page_before_an_older_server_shows_what_that_has(
    site: Site, in_front: Site, open_page: Open
):
    page = open_page(f"{in_front.url}/rollouts", allow=(REFUSED,))
    state(page, "polling")
    queued = site.run(site.store.enqueue_rollout("found by asking again"))
    expect(page.get_by_text(queued.rollout_id)).to_be_visible()
    page.get_by_label("Mode").select_option("val")
    expect(page.get_by_role("alert")).to_contain_text("does not filter by mode")
    page.get_by_label("Mode").select_option("all")
    page.get_by_role("button", name="Reward").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid sort_by: reward")
    page.goto(f"{in_front.url}/rollouts/{site.rollout_ids[-1]}?view=Chat")
    expect(page.get_by_role("article", name="Call 2")).to_contain_text("Maple")
    page.goto(f"{in_front.url}/training?run=room-booking")
    expect(page.get_by_role("row", name=re.compile("step-08"))).to_contain_text("8/8")
    page.goto(f"{in_front.url}/rollouts/{queued.rollout_id}")
    confirm(page, "Cancel")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


# -- hostile content -------------------------------------------------------------------------------

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
TEMPLATE = "${window.hacked=1}{{window.hacked=1}}"
URL = "javascript:window.hacked=1"
BACKWARDS = "abc\u202egpj.exe"
NUL = "a\x00b\x1b[31mred"
BROKEN = "half a pair \ud83d here"
HOSTILE = f"{MARKUP} {TEMPLATE} {URL} {BACKWARDS} {NUL}"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Site]:
    """A store whose every text is hostile."""
    site = Site(InMemoryLightningStore())
    store = site.store

    async def filled() -> str:
        prompt = PromptTemplate(template=HOSTILE, engine="f-string")
        snapshot = await store.add_resources({HOSTILE: prompt})
        labels = {"run": MARKUP, "batch": MARKUP}
        task = {MARKUP: HOSTILE, "broken": BROKEN}
        await store.enqueue_rollout(task, resources_id=snapshot.resources_id, metadata=labels)
        worker = f"worker {MARKUP}"
        claim = await store.dequeue_rollout(worker)
        assert claim is not None
        load = {"gpus": [None, MARKUP, {"gpu": MARKUP, "util_pct": MARKUP}], "mem_pct": MARKUP}
        await store.update_worker(worker, load)
        ids = claim.rollout_id, claim.attempt.attempt_id
        spans = list(trace(*ids, HOSTILE, 0.5, random.Random(1)))
        texts = {"role": "user", "parts": [{"type": "text", "content": HOSTILE}]}
        image = {"role": "user", "parts": [{"type": "uri", "uri": "http://192.0.2.1/spy.png"}]}
        answer = {**texts, "role": "assistant", "finish_reason": MARKUP}
        hostile = {
            MARKUP: MARKUP,
            "html": HOSTILE,
            "large": "<b>" * 1_000_000,
            "gen_ai.response.model": MARKUP,
            **model_call([texts, image], answer, 1, 1),
        }
        spans[1] = spans[1].model_copy(
            update={"name": HOSTILE, "attributes": {**spans[1].attributes, **hostile}}
        )
        await store.add_many_spans(spans)
        error = {"error": HOSTILE}
        await store.update_attempt(*ids, status="failed", metadata=error)
        return claim.rollout_id

    site.rollout_ids = [site.run(filled())]
    yield site
    site.close()


HOSTILE_PAGES = {
    "/rollouts": MARKUP,
    "/rollouts/{id}?span=0000000000000002": MARKUP,
    "/rollouts/{id}?view=Chat": MARKUP,
    "/rollouts/{id}?view=Resources": "onerror",
    "/rollouts/{id}?view=JSON": "onerror",
    "/traces?rollout={id}": MARKUP,
    "/training": MARKUP,
    "/workers": MARKUP,
    "/resources": MARKUP,
}


@pytest.mark.parametrize("path", HOSTILE_PAGES)
def test_hostile_content_is_text(hostile: Site, open_page: Open, path: str):
    requests: list[str] = []
    dialogs: list[Any] = []
    page = open_page("about:blank")
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    page.goto(hostile.url + path.replace("{id}", hostile.rollout_ids[0]))
    state(page, "live")
    expect(page.locator("main")).to_contain_text(HOSTILE_PAGES[path])
    text = page.locator("main").inner_text()
    # Marks that change the direction of text, and control characters, are written out.
    assert not set("\u202e\x00\x1b") & set(text)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main iframe, main b").count() == 0
    assert dialogs == []
    origin = hostile.url.removesuffix("/dashboard")
    assert [url for url in requests if not url.startswith((origin, "data:"))] == []


def test_the_browser_refuses_foreign_scripts(hostile: Site, open_page: Open):
    page = open_page(f"{hostile.url}/rollouts", allow=("Content Security Policy", REFUSED))
    state(page, "live")
    page.evaluate(
        """() => {
            window.refused = [];
            addEventListener("securitypolicyviolation", e => refused.push(e.effectiveDirective));
            const inline = document.createElement("script");
            inline.textContent = "window.hacked = 1";
            const foreign = document.createElement("script");
            foreign.src = "http://192.0.2.1/evil.js";
            const image = document.createElement("img");
            image.src = "http://192.0.2.1/spy.png";
            const frame = document.createElement("iframe");
            frame.src = "http://192.0.2.1/";
            const handler = document.createElement("div");
            handler.innerHTML = "<img src=data:, onerror='window.hacked = 1'>";
            document.body.append(inline, foreign, image, frame, handler);
            fetch("http://192.0.2.1/steal").catch(() => {});
        }"""
    )
    directives = {"script-src-elem", "script-src-attr", "img-src", "frame-src", "connect-src"}
    page.wait_for_function(
        "wanted => wanted.every(d => refused.includes(d))", arg=sorted(directives)
    )
    assert page.evaluate("window.hacked") is None
