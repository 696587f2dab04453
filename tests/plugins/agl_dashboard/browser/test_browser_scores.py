"""Every page that shows a score, on data that tempts it to show a wrong one."""

from __future__ import annotations

import base64
import re
import struct
import time
import zlib
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from agl_core.statistics import estimate_gain
from agl_core.store import LightningStore
from agl_core.types import Checkpoint, PromptTemplate, RolloutMode, Span
from agl_store_memory import InMemoryLightningStore

from ..sample import model_call
from .conftest import DESKTOP, PHONE
from .site import Site
from .steps import Open, no_finding, settled

pytestmark = pytest.mark.heavy


def png() -> str:
    """Return a picture of four pixels as the base64 text of a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\x00" + b"\xff\x00\x00" * 2 for _ in range(2))
    head = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


async def end(
    store: LightningStore,
    task: Any,
    reward: float | None,
    *,
    mode: RolloutMode = "val",
    status: Any = "succeeded",
    resources_id: str | None = None,
    infrastructure: str | None = None,
    calls: list[dict[str, Any]] | None = None,
    **labels: Any,
) -> str:
    """Run a rollout to its end; return its id."""
    queued = await store.enqueue_rollout(
        task, mode=mode, resources_id=resources_id, metadata=labels
    )
    claim = await store.dequeue_rollout("runner")
    assert claim is not None
    ids: dict[str, Any] = {
        "rollout_id": queued.rollout_id,
        "attempt_id": claim.attempt.attempt_id,
    }
    said = [("chat", each) for each in calls or []]
    if reward is not None:
        said.append(("agentlightning.annotation", {"agentlightning.reward.0.value": reward}))
    now = time.time()
    await store.add_many_spans(
        [
            Span.from_attributes(
                **ids,
                attributes=attributes,
                sequence_id=number,
                span_id=f"{number:016x}",
                name=name,
                start_time=now + number,
                end_time=now + number + 0.5,
            )
            for number, (name, attributes) in enumerate(said, start=1)
        ]
    )
    facts: dict[str, Any] = {"error": "it broke"} if status == "failed" else {}
    if infrastructure:
        facts |= {"infrastructure": infrastructure, "repeatable": False}
    await store.update_attempt(**ids, status=status, metadata=facts)
    return queued.rollout_id


async def search(store: LightningStore) -> None:
    """Fill a store as a search of a prompt leaves it: the chosen version is not the highest one."""
    texts = {"v0": "Answer.", "v1": "Answer at once.", "v2": "Think, then answer."}
    for version, text in texts.items():
        prompt = PromptTemplate(template=text, engine="f-string")
        await store.update_resources(f"night/{version}", {"prompt": prompt})
    for number in range(4):
        task = {"id": number}
        for version, batch, reward, status in (
            ("v0", "v0-start", 0.25, "succeeded"),
            # It crashes on half of its tasks, after it emitted the best reward.
            ("v1", "v1-round-1", 1.0, "failed" if number % 2 else "succeeded"),
            ("v2", "v2-round-1", 0.75, "succeeded"),
        ):
            await end(
                store,
                task,
                reward,
                status=status,
                resources_id=f"night/{version}",
                run="night",
                batch=batch,
                calls=[model_call([], {"role": "assistant", "finish_reason": "stop"}, 100, 10)],
            )
    # A single lucky task of training must not make it the best.
    await end(store, "lucky", 1.0, mode="train", resources_id="night/v0", run="night", batch="t")
    await end(
        store,
        {"id": 0},
        None,
        status="failed",
        infrastructure="proxy",
        resources_id="night/v2",
        run="night",
        batch="v2-round-1",
    )
    for name, version, reward in (("eval-a", "v0", 0.125), ("eval-b", "v2", 0.625)):
        prompt = PromptTemplate(template=texts[version], engine="f-string")
        await store.update_resources(name, {"prompt": prompt})
        for number in range(3):
            await end(store, {"held out": number}, reward, mode="test", resources_id=name)
    history = [
        {"version": "v0", "parent": None},
        {"version": "v1", "parent": "v0"},
        {"version": "v2", "parent": "v0"},
    ]
    state = {"best": "v2", "history": history}
    checkpoint = Checkpoint(state=state, metrics={"apo/tokens": 46253.0}, finished=True)
    await store.update_resources("run:night", {"checkpoint": checkpoint})


@pytest.fixture
def searched(empty: Site) -> Site:
    empty.run(search(empty.store))
    return empty


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row", name=re.compile(name))


def test_the_training_page_tells_the_gain_of_the_prompt_that_the_run_chose(
    searched: Site, open_page: Open
):
    page = open_page(f"{searched.url}/training")
    settled(page, "Did it get better?")
    gain = page.get_by_role("region", name="Did it get better?")
    expect(gain.get_by_role("columnheader")).to_have_text(
        [
            "Reward, 95 % interval",
            "First prompt, night/v0",
            "Chosen prompt, night/v2",
            "Gain, on the same tasks",
        ]
    )
    # The evaluation published the same texts again; modes are never pooled.
    test, val = gain.get_by_role("row").nth(1), gain.get_by_role("row").nth(2)
    expect(test).to_contain_text(re.compile(r"test tasks.*0\.125.*0\.625"))
    expect(val).to_contain_text(re.compile(r"validation tasks.*0\.250.*0\.750"))
    paired = estimate_gain([0.25] * 4, [0.75] * 4)
    ends = f"[\N{MINUS SIGN}{-paired.low:.3f}, +{paired.high:.3f}]"
    expect(val).to_contain_text(f"+0.500 {ends} 4 tasks, not shown")  # four tasks say little
    expect(test).to_contain_text(re.compile(r"\+0\.500 .* 3 tasks, not shown"))
    changed = page.get_by_role("region", name="What changed")
    expect(changed.locator("ins").first).to_contain_text("Think")
    chosen = page.get_by_role("list", name="Prompt versions").get_by_role("button", pressed=True)
    expect(chosen).to_contain_text("night/v2")
    expect(chosen).to_contain_text("chosen by the run")
    no_finding(page)


def test_a_prompt_that_crashes_on_half_of_its_tasks_does_not_show_a_full_score(
    searched: Site, open_page: Open
):
    page = open_page(f"{searched.url}/training?run=night&batch=v1-round-1")
    settled(page, "Groups of v1-round-1")
    batch = row(page, "v1-round-1")
    expect(batch).to_contain_text("0.500")
    expect(batch).not_to_contain_text("1.000 [")
    groups = page.get_by_role("region", name="Groups of the batch")
    expect(groups.get_by_text("failed", exact=True)).to_have_count(2)
    expect(groups.get_by_role("link", name=re.compile(r"reward 1\.000"))).to_have_count(2)
    versions = page.get_by_role("list", name="Prompt versions")
    version = versions.get_by_role("button").filter(has_text="night/v1")
    expect(version).to_contain_text("0.500")
    # The reward that a crashed rollout emitted is struck out in the list.
    page.goto(f"{searched.url}/rollouts?status=Failed&sort=-reward")
    settled(page, "failed")
    expect(page.locator(".rows-body .reward[data-counts=false]")).to_have_count(2)


def test_failures_of_the_proxy_are_not_those_of_the_agent(searched: Site, open_page: Open):
    page = open_page(f"{searched.url}/training?run=night&batch=v2-round-1")
    settled(page, "Groups of v2-round-1")
    cells = row(page, "v2-round-1").get_by_role("cell")
    heads = page.get_by_role("region", name="Batches").get_by_role("columnheader")
    names = heads.all_inner_texts()[1:]
    values = dict(zip(names, cells.all_inner_texts(), strict=True))
    assert (values["Failed"], values["Lost"], values["Rollouts"]) == ("0", "1", "5/5")
    assert values["Reward, 95 % interval"].startswith("0.750")
    lost = page.get_by_role("link", name=re.compile("the proxy failed it, not the agent"))
    expect(lost).to_have_text("lost")
    lost.click()
    expect(page.locator(".notice.bad")).to_contain_text("the proxy failed it, not the agent")


def test_evaluations_of_different_prompts_are_different_rows(searched: Site, open_page: Open):
    page = open_page(f"{searched.url}/training?run=")
    settled(page, "eval-a")
    expect(row(page, "eval-a")).to_contain_text("0.125")
    expect(row(page, "eval-b")).to_contain_text("0.625")
    expect(page.get_by_role("img", name="Mean reward of each batch")).to_have_count(0)


def test_a_run_shows_what_its_chosen_prompt_scores(searched: Site, open_page: Open):
    page = open_page(f"{searched.url}/runs")
    settled(page, "night")
    facts = page.locator(".card .facts")
    expect(facts).to_contain_text(re.compile(r"Chosen prompt on test tasks\s*0\.625"))
    expect(facts).to_contain_text(re.compile(r"Chosen prompt on validation tasks\s*0\.750"))
    expect(facts).to_contain_text("46,253")


def test_the_training_page_says_what_the_run_cost(searched: Site, open_page: Open):
    page = open_page(f"{searched.url}/training")
    settled(page, "Tokens of the agent")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text(re.compile(r"Model calls of the agent\s*12\s*Tokens"))
    expect(facts).to_contain_text("1,200 → 120")
    expect(row(page, "v0-start")).to_contain_text("110")


def test_rollouts_without_the_name_of_a_run_open_on_the_training_page(empty: Site, open_page: Open):
    empty.run(end(empty.store, "of a run", 0.25, run="nightly", batch="step-0"))
    one = empty.run(end(empty.store, "of none", 0.75))
    page = open_page(f"{empty.url}/training")
    settled(page, "step-0")
    page.get_by_label("Run").select_option("without a name")
    row = page.get_by_role("row", name="without a name")
    expect(row).to_contain_text("0.750")
    groups = page.get_by_role("region", name="Groups", exact=True)
    expect(groups).to_have_count(0)
    button = row.get_by_role("button")
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(groups.get_by_role("link", name=one)).to_be_visible()
    page.reload()  # both choices are in the address
    expect(groups).to_contain_text("Groups of the batch without a name")
    button.click()
    expect(groups).to_have_count(0)
    page.get_by_label("Run").select_option("nightly")
    expect(page.get_by_role("row", name="step-0")).to_be_visible()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("path", ["training?run=room-booking&batch=step-06", "runs", "resources"])
def test_no_page_is_taller_than_what_it_shows(
    site: Site, open_page: Open, path: str, viewport: Any
):
    page = open_page(f"{site.url}/{path}", viewport=viewport)
    settled(page, "system_prompt" if path == "resources" else "room-booking")
    document, screen, scrolled, shown = page.evaluate(
        """() => {
            const main = document.querySelector("main");
            const bottoms = [...main.querySelectorAll(".page > *")].map(
                (element) => element.getBoundingClientRect().bottom + main.scrollTop
            );
            const root = document.documentElement;
            const shown = Math.max(main.clientHeight, ...bottoms);
            return [root.scrollHeight, innerHeight, main.scrollHeight, shown];
        }"""
    )
    assert document <= screen  # the menu does not scroll away
    assert scrolled - shown < 100


def test_two_selected_rollouts_are_compared(site: Site, open_page: Open):
    page = open_page(f"{site.url}/rollouts?sort=rollout_id")
    settled(page, "smallest room")
    boxes = page.get_by_role("checkbox")
    selection = page.get_by_role("region", name="Selection")
    boxes.nth(0).check()
    expect(selection.get_by_role("link", name="Compare")).to_have_count(0)
    boxes.nth(1).check()
    selection.get_by_role("link", name="Compare").click()
    one, other = sorted(site.rollout_ids)[:2]
    expect(page).to_have_url(f"{site.url}/rollouts/{one}?with={other}")
    expect(page.get_by_role("table", name="Spans")).to_have_count(2)


def test_rollouts_are_found_by_what_their_messages_say(empty: Site, open_page: Open):
    def said(text: str) -> list[dict[str, Any]]:
        user = {"role": "user", "parts": [{"type": "text", "content": text}]}
        return [model_call([user], {"role": "assistant", "finish_reason": "stop"}, 1, 1)]

    fern = empty.run(end(empty.store, 1, 1.0, calls=said("Water the Fern on the sill.")))
    empty.run(end(empty.store, 2, 1.0, calls=said("Feed the cat.")))
    lamp = empty.run(end(empty.store, {"wish": "a fern-green lamp"}, 0.0))
    page = open_page(f"{empty.url}/rollouts")
    settled(page, lamp)
    page.get_by_role("searchbox", name="Search messages").fill("the FERN")
    expect(page.get_by_text("1 found in 3 rollouts")).to_be_visible()
    links = page.get_by_role("link", name=re.compile("^ro-"))
    expect(links).to_have_text([fern])
    expect(page).to_have_url(re.compile(r"text=the\+FERN$"))
    page.get_by_role("searchbox", name="Search messages").fill("fern")
    expect(links).to_have_text([lamp, fern])
    page.get_by_role("searchbox", name="Search messages").fill("gen_ai")
    expect(page.get_by_text("No rollout matches")).to_be_visible()
    page.get_by_role("searchbox", name="Search messages").fill("")
    expect(links).to_have_count(3)
    no_finding(page)


def test_images_in_messages_are_shown_and_those_elsewhere_are_not_loaded(
    empty: Site, open_page: Open
):
    image = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": png()}
    away = {"type": "uri", "modality": "image", "uri": "http://127.0.0.1:9/spy.png"}
    text = {"type": "text", "content": "What is it?"}
    user = {"role": "user", "parts": [text, image, away]}
    answer = {"role": "assistant", "parts": [text], "finish_reason": "stop"}
    one = empty.run(end(empty.store, 1, 1.0, calls=[model_call([user], answer, 1, 1)]))
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{empty.url}/rollouts/{one}?view=Chat")
    settled(page, "What is it?")
    images = page.get_by_role("article", name="Call 1").get_by_role("img")
    expect(images).to_have_count(1)
    assert images.evaluate("image => image.decode().then(() => image.naturalWidth)") == 2
    expect(page.get_by_text("[image] http://127.0.0.1:9/spy.png")).to_be_visible()
    assert not any("spy" in url for url in asked)
    no_finding(page)


def test_a_call_of_client_and_proxy_is_one_call_of_the_chat(empty: Site, open_page: Open):
    user = {"role": "user", "parts": [{"type": "text", "content": "Hello"}]}
    answer = {"role": "assistant", "parts": [], "finish_reason": "stop"}
    call = model_call([user], answer, 7, 3)

    async def twice() -> str:
        queued = await empty.store.enqueue_rollout("task")
        claim = await empty.store.dequeue_rollout("runner")
        assert claim is not None
        now = time.time()
        await empty.store.add_many_spans(
            [
                Span.from_attributes(
                    rollout_id=queued.rollout_id,
                    attempt_id=claim.attempt.attempt_id,
                    attributes=call | {"gen_ai.response.id": "r-1"},
                    sequence_id=number,
                    span_id=f"{number:016x}",
                    parent_id=None if number == 1 else f"{1:016x}",
                    name=name,
                    start_time=now,
                    end_time=now + 1,
                )
                for number, name in enumerate(("openai.chat", "agl.proxy"), start=1)
            ]
        )
        await empty.store.update_attempt(queued.rollout_id, "latest", status="succeeded")
        return queued.rollout_id

    one = empty.run(twice())
    page = open_page(f"{empty.url}/rollouts/{one}?view=Chat")
    settled(page, "Hello")
    expect(page.get_by_role("article")).to_have_count(1)
    facts = page.locator(".facts").first
    expect(facts).to_contain_text(re.compile(r"Tokens\s*7 → 3\s*Calls\s*1\s*Spans\s*2"))


LONG = 400
"""Calls of a long chat; each repeats all messages before it."""


def test_a_long_chat_opens_and_can_be_read_to_its_end(empty: Site, open_page: Open):
    messages: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for number in range(LONG):
        text = {"type": "text", "content": f"question {number}"}
        messages.append({"role": "user", "parts": [text]})
        text = {"type": "text", "content": f"answer {number}"}
        answer = {"role": "assistant", "parts": [text], "finish_reason": "stop"}
        calls.append(model_call(messages, answer, 1, 1))
        messages.append(answer)
    one = empty.run(end(empty.store, 1, 1.0, calls=calls))
    page = open_page(f"{empty.url}/rollouts/{one}?view=Chat")
    settled(page, "question 99")
    expect(page.get_by_role("article")).to_have_count(100)
    # Folded messages are made when they are opened: 100 calls would have 10,000 of them.
    assert page.locator(".bubble").count() == 200
    call = page.get_by_role("article", name="Call 50", exact=True)
    call.get_by_text("98 messages as before").click()
    expect(call.locator(".bubble")).to_have_count(100)
    for shown in range(200, LONG + 1, 100):
        page.get_by_role("button", name=re.compile("^Show 100 more of 400 calls")).click()
        expect(page.get_by_role("article")).to_have_count(shown)
    expect(page.get_by_text(f"answer {LONG - 1}", exact=True)).to_be_attached()
    expect(page.get_by_role("button", name=re.compile("^Show 100 more"))).to_have_count(0)


class DeadRunners(InMemoryLightningStore):
    """A store whose runners were last heard of some minutes ago."""

    async def query_workers(self, **filters: Any) -> Any:
        page = await super().query_workers(**filters)
        ago = {"last_heartbeat_time": time.time() - 300, "last_dequeue_time": time.time() - 300}
        items = [
            worker.model_copy(update=ago) if worker.worker_id.startswith("dead") else worker
            for worker in page.items
        ]
        return type(page)(items=items, limit=page.limit, offset=page.offset, total=page.total)


def test_dead_runners_are_neither_idle_nor_busy_nor_at_full_load(open_page: Open):
    site = Site(DeadRunners())

    async def work() -> None:
        for name in ("dead-idle", "dead-busy", "well"):
            await site.store.update_worker(name, {"cpu_usage_pct": 100.0, "mem_pct": 50.0})
        await site.store.enqueue_rollout(1)
        assert await site.store.dequeue_rollout("dead-busy")

    try:
        site.run(work())
        page = open_page(f"{site.url}/workers")
        settled(page, "dead-busy")
        for name in ("dead-idle", "dead-busy"):
            expect(row(page, name)).to_contain_text("unknown")
            expect(row(page, name)).not_to_contain_text("100 %")
            expect(row(page, name)).to_contain_text("5 min ago")
        expect(row(page, "well")).to_contain_text("100 %")
        expect(page.get_by_text("3, 0 busy, 2 silent")).to_be_visible()
        # What a dead runner worked on is where its user looks next.
        expect(row(page, "dead-busy").get_by_role("link", name=re.compile("^ro-"))).to_be_visible()
        no_finding(page)
    finally:
        site.close()
