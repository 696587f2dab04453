"""Many rollouts and large traces in a real Chromium."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from agl_core.store import InMemoryLightningStore
from agl_core.types import EnqueueRolloutRequest, Span

from ..sample import QUESTIONS, trace
from .site import Site
from .steps import Open

pytestmark = [pytest.mark.heavy, pytest.mark.timing, pytest.mark.timeout(600)]

ROLLOUTS = 100_000
WITH_SPANS = 2_000
"""The page reads the spans of the rollouts in sight only; so many of the latest have 60 each."""
SPANS = 60
LARGE_TRACE = 5_000

STALL_MS = 50


def best_of_three(open_page: Open, url: str, shown: Callable[[Page], object]) -> float:
    """Return the seconds until a page that is opened for the first time shows its data.

    The least of three, since other work of the machine only adds to them.
    """
    took: list[float] = []
    for _ in range(3):
        page = open_page("about:blank")
        began = time.monotonic()
        page.goto(url)
        shown(page)
        took.append(time.monotonic() - began)
    return min(took)


def longest_tasks(trace_file: bytes) -> list[float]:
    """Return the CPU time of the page's tasks in a trace, in milliseconds, longest first.

    CPU time and not wall time: wall time also counts the other work of the machine.
    """
    events = json.loads(trace_file)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        event["tdur"] / 1000
        for event in events
        if event["name"] == "RunTask" and "tdur" in event and (event["pid"], event["tid"]) in main
    ]
    return sorted(tasks, reverse=True)


def sixty(rollout_id: str, attempt_id: str, chance: random.Random) -> list[Span]:
    """Return a trace of 60 spans: twelve turns of the sample's trace."""
    spans: list[Span] = []
    while len(spans) < SPANS:
        for span in trace(rollout_id, attempt_id, QUESTIONS[0], chance.random(), chance):
            number = len(spans) + 1
            changed = {"span_id": f"{number:016x}", "sequence_id": number, "parent_id": None}
            spans.append(span.model_copy(update=changed))
    return spans[:SPANS]


@pytest.fixture(scope="module")
def large() -> Iterator[Site]:
    """A store of 100,000 finished rollouts."""
    site = Site(InMemoryLightningStore())
    site.run(fill(site))
    yield site
    site.close()


async def fill(site: Site) -> None:
    store = site.store
    chance = random.Random(5)
    for first in range(0, ROLLOUTS, 1000):
        requests = [
            EnqueueRolloutRequest(
                input={"question": QUESTIONS[number % len(QUESTIONS)], "number": number},
                mode="train",
                metadata={"run": "large", "batch": f"step-{first // 1000:03d}", "index": number},
            )
            for number in range(first, first + 1000)
        ]
        await store.enqueue_many_rollouts(requests)
        for claim in await store.dequeue_many_rollouts(limit=1000, worker_id="runner-0"):
            ids = claim.rollout_id, claim.attempt.attempt_id
            if first >= ROLLOUTS - WITH_SPANS:
                await store.add_many_spans(sixty(*ids, chance))
            await store.update_attempt(*ids, status="succeeded")
            site.rollout_ids.append(claim.rollout_id)


def test_the_first_page_of_100_000_rollouts_opens_at_once(large: Site, open_page: Open):
    def shown(page: Page) -> None:
        expect(page.get_by_role("row", name="number: 99000")).to_contain_text("succeeded")
        expect(page.locator(".page-head")).to_contain_text("100,000")

    took = best_of_three(open_page, f"{large.url}/rollouts", shown)
    print(f"first page of {ROLLOUTS} rollouts: {took:.2f} s")
    assert took < 1.5


def test_scrolling_does_not_stall(large: Site, open_page: Open, chromium: Browser):
    page = open_page(f"{large.url}/rollouts")
    expect(page.get_by_role("row", name="number: 99000")).to_be_visible()
    box = page.get_by_role("table", name="Rollouts").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    categories = ["disabled-by-default-devtools.timeline", "toplevel", "__metadata"]
    chromium.start_tracing(page=page, categories=categories)
    for _ in range(60):
        page.mouse.wheel(0, 700)
        page.wait_for_timeout(50)
    expect(page.get_by_role("row", name="number: 98240")).to_be_visible()
    tasks = longest_tasks(chromium.stop_tracing())
    print(f"longest tasks while scrolling through 1,200 rollouts: {tasks[:5]} ms")
    assert len(tasks) > 60
    assert tasks[0] < STALL_MS


def test_the_end_of_100_000_rollouts_is_reached(large: Site, open_page: Open):
    page = open_page(f"{large.url}/rollouts")
    expect(page.get_by_role("row", name="number: 99000")).to_be_visible()
    page.get_by_role("table", name="Rollouts").evaluate(
        "table => table.scrollTo(0, table.scrollHeight)"
    )
    expect(page.get_by_role("row", name="number: 999 ")).to_be_visible()


def test_a_rollout_of_5000_spans_opens_in_two_seconds(large: Site, open_page: Open):
    store = large.store
    chance = random.Random(3)

    async def filled() -> str:
        rollout = await store.start_rollout({"question": "large"})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        spans: list[Span] = []
        while len(spans) < LARGE_TRACE:
            number = len(spans) + 1
            span = trace(*ids, QUESTIONS[0], 0.5, chance)[number % 4]
            parent = (
                None if number == 1 else f"{chance.randint(max(1, number - 40), number - 1):016x}"
            )
            changed = {"span_id": f"{number:016x}", "sequence_id": number, "parent_id": parent}
            spans.append(span.model_copy(update=changed))
        await store.add_many_spans(spans)
        await store.update_attempt(*ids, status="succeeded")
        return rollout.rollout_id

    rollout_id = large.run(filled())

    def shown(page: Page) -> None:
        table = page.get_by_role("table", name="Spans")
        expect(table).to_have_attribute("aria-rowcount", str(LARGE_TRACE + 1))
        expect(table.get_by_role("row").nth(5)).to_be_visible()

    took = best_of_three(open_page, f"{large.url}/rollouts/{rollout_id}", shown)
    print(f"rollout of {LARGE_TRACE} spans: {took:.2f} s")
    assert took < 2
