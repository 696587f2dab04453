"""What happens in the store is on the page within a second, and what the page asks for happens."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, Checkpoint, PromptTemplate

from ..sample import model_call, trace
from .site import Site
from .steps import Open, confirm, visit

pytestmark = pytest.mark.heavy

# It lasts until the test has seen every page.
TRAINING = """
import sys, time
import agl_core as agl
from agl_algorithm_kit import Baseline
from agl_store_http import LightningStoreClient

@agl.rollout
def agent(task, prompt_template):
    time.sleep(0.1)
    return task["id"] % 4 / 3

trainer = agl.Trainer(
    n_runners=2, store=LightningStoreClient(sys.argv[1]), run="nightly",
    algorithm=Baseline(n_epochs=10_000),
    initial_resources={"main": agl.PromptTemplate(template="Answer.", engine="f-string")},
)
trainer.fit(agent, train_dataset=[{"id": i} for i in range(4)])
"""


@pytest.fixture
def training(empty: Site, tmp_path: Path) -> Iterator[None]:
    """A training in a process of its own, on the server."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), empty.url.removesuffix("/dashboard")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stderr=log)
    yield
    process.kill()
    process.wait()


def live(page: Page) -> None:
    expect(page.locator(".connection")).to_have_attribute("data-state", "live")


def within_a_second(change: Callable[[int], object], seen: Callable[[int], object]) -> None:
    """Make the first, second and third change; one of them must be seen within a second.

    Three, since other work of the machine only adds to the time.
    """
    took: list[float] = []
    for number in range(3):
        change(number)
        began = time.monotonic()
        seen(number)
        took.append(time.monotonic() - began)
    assert min(took) < 1, took


async def claimed(store: LightningStore, task: object = "a task") -> AttemptedRollout:
    """Enqueue a task and claim it, as a runner does."""
    await store.enqueue_rollout(task)
    claim = await store.dequeue_rollout("runner-0")
    assert claim is not None
    return claim


def test_every_page_follows_a_running_training(empty: Site, training: None, open_page: Open):
    page = open_page(f"{empty.url}/rollouts")
    live(page)
    succeeded = page.get_by_role("button", name=re.compile("^Succeeded"))
    expect(succeeded).to_contain_text(re.compile(r"[4-9]|\d\d"))
    expect(succeeded).not_to_have_text(succeeded.inner_text())
    visit(page, "Training")
    expect(page.get_by_role("row", name=re.compile(r"\bepoch-1\b"))).to_be_visible()
    expect(page.get_by_role("img", name="reward over steps")).to_be_visible()
    steps = page.get_by_text(re.compile(r"over \d+ steps"))
    expect(steps).not_to_have_text(steps.inner_text())
    visit(page, "Workers")
    expect(page.get_by_role("row", name=re.compile("busy")).first).to_be_visible()
    visit(page, "Runs")
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    expect(page.locator(".status")).to_have_text("running")
    expect(page.get_by_role("row", name=re.compile("^algorithm"))).to_contain_text("Baseline")
    visit(page, "Resources")
    expect(page.locator("main")).to_contain_text("nightly/default")
    visit(page, "Traces")
    # The page shows the newest rollout that has ended.
    spans = page.get_by_role("table", name="Spans")
    expect(spans).to_contain_text("agentlightning")


def test_rollouts_attempts_and_rewards_are_seen_within_a_second(empty: Site, open_page: Open):
    store = empty.store
    page = open_page(f"{empty.url}/rollouts")
    live(page)
    expect(page.get_by_text("No rollouts yet")).to_be_visible()
    row = page.get_by_role("row").nth(1)  # the newest rollout
    within_a_second(
        lambda number: empty.run(store.enqueue_rollout({"question": f"{number} miles?"})),
        lambda number: expect(row).to_contain_text(f"question: {number} miles?"),
    )
    claims = empty.run(store.dequeue_many_rollouts(limit=3, worker_id="runner-0"))
    expect(page.get_by_role("row", name="preparing")).to_have_count(3)

    def finish(number: int) -> None:
        ids = claims[number].rollout_id, claims[number].attempt.attempt_id
        reward = 0.625 + number / 1000
        empty.run(store.add_many_spans(trace(*ids, "how far?", reward, random.Random(1))))
        empty.run(store.update_attempt(*ids, status="succeeded"))

    within_a_second(
        finish,
        lambda number: expect(page.get_by_role("row", name=f"{number} miles?")).to_contain_text(
            f"0.62{5 + number}"
        ),
    )
    expect(page.get_by_role("row", name="succeeded")).to_have_count(3)


def test_spans_of_a_running_attempt_are_seen_within_a_second(empty: Site, open_page: Open):
    store = empty.store
    claim = empty.run(claimed(store))
    ids = claim.rollout_id, claim.attempt.attempt_id
    page = open_page(f"{empty.url}/rollouts/{claim.rollout_id}")
    live(page)
    expect(page.get_by_text("No spans in this attempt yet")).to_be_visible()
    spans = trace(*ids, "how far?", 0.5, random.Random(1))
    table = page.get_by_role("table", name="Spans")
    within_a_second(
        lambda number: empty.run(store.add_many_spans(spans[number : number + 1])),
        lambda number: expect(table).to_contain_text(spans[number].name),
    )


def test_workers_and_resources_are_seen_within_a_second(empty: Site, open_page: Open):
    store = empty.store
    page = open_page(f"{empty.url}/workers")
    live(page)
    gpus = [{"gpu": "H200", "util_pct": 88}]
    row = page.get_by_role("row", name=re.compile("runner-7"))
    within_a_second(
        lambda number: empty.run(
            store.update_worker("runner-7", {"cpu_usage_pct": 73.2 + number, "gpus": gpus})
        ),
        lambda number: expect(row).to_contain_text(f"{73 + number} %"),
    )
    expect(row).to_contain_text("H200 88 %")
    visit(page, "Resources")

    def added(number: int) -> None:
        prompt = PromptTemplate(template=f"Answer in {number} words.", engine="f-string")
        empty.run(store.add_resources({"main": prompt}))

    within_a_second(
        added,
        lambda number: expect(page.locator(".page-head").first).to_contain_text(
            f"{number + 1} snapshots"
        ),
    )
    expect(page.get_by_role("region", name="main").locator("ins")).to_have_text("2")


def test_training_and_runs_are_seen_within_a_second(empty: Site, open_page: Open):
    store = empty.store
    page = open_page(f"{empty.url}/training")
    live(page)
    expect(page.get_by_text("No rollouts yet")).to_be_visible()

    async def finish(number: int) -> None:
        labels = {"run": "nightly", "batch": f"step-{number}"}
        await store.enqueue_rollout("a task", metadata=labels)
        claim = await store.dequeue_rollout("runner-0")
        assert claim is not None
        ids = claim.rollout_id, claim.attempt.attempt_id
        await store.add_many_spans(trace(*ids, "how far?", number / 4, random.Random(1)))
        await store.update_attempt(*ids, status="succeeded")

    def row(number: int) -> Locator:
        return page.get_by_role("row", name=re.compile(f"step-{number}"))

    within_a_second(
        lambda number: empty.run(finish(number)),
        lambda number: expect(row(number)).to_contain_text(f"{number / 4:.3f}"),
    )
    visit(page, "Runs")

    def saved(number: int) -> Checkpoint:
        loss = 0.217 + number / 1000
        return Checkpoint(state={"step": number}, metrics={"loss": loss}, finished=False)

    within_a_second(
        lambda number: empty.run(
            store.update_resources("run:nightly", {"checkpoint": saved(number)})
        ),
        lambda number: expect(page.get_by_role("article")).to_contain_text(f"0.21{7 + number}"),
    )


SLOW = """
window.held = [];
window.asking = 0;
const { fetch } = window;
window.fetch = async (...call) => {
    asking += 1;
    const answer = await fetch(...call).finally(() => { asking -= 1; });
    if (window.slow?.test(call[0].url ?? call[0])) await new Promise((end) => held.push(end));
    return answer;
};
"""
"""Holds answers of addresses that match ``slow`` until their function in ``held`` is called."""


def slow_page(open_page: Open, url: str, what: str, slow: str) -> Page:
    """Open a page; once it is live and shows something, hold answers of matching addresses."""
    page = open_page("about:blank")
    page.add_init_script(SLOW)
    page.goto(url)
    live(page)
    expect(page.locator("main")).to_contain_text(what)
    page.wait_for_function("asking === 0")
    page.evaluate("slow => { window.slow = new RegExp(slow); }", slow)
    return page


def held(page: Page, number: int) -> None:
    """Wait until so many answers have been held."""
    page.wait_for_function("number => held.length === number", arg=number)


def test_events_during_a_slow_answer_wait_for_it(empty: Site, open_page: Open):
    page = slow_page(open_page, f"{empty.url}/rollouts", "No rollouts yet", "/search$")
    empty.run(empty.store.enqueue_rollout("first"))
    held(page, 1)
    # Later events refresh what is quick, and leave the slow list alone.
    for number in (2, 3):
        empty.run(empty.store.enqueue_rollout("later"))
        expect(page.get_by_role("button", name="All")).to_have_text(f"All{number}")
    assert page.evaluate("held.length") == 1
    page.evaluate("held[0]()")
    expect(page.get_by_role("row", name="first")).to_be_visible()
    # That answer was older than the events: another one is asked for.
    held(page, 2)
    expect(page.get_by_role("row", name="later")).to_have_count(0)
    page.evaluate("held[1]()")
    expect(page.get_by_role("row", name="later")).to_have_count(2)


def test_spans_during_a_slow_answer_wait_for_it(empty: Site, open_page: Open):
    store = empty.store
    claim = empty.run(claimed(store))
    spans = trace(claim.rollout_id, claim.attempt.attempt_id, "how far?", 0.5, random.Random(1))
    empty.run(store.add_many_spans(spans[:1]))  # the attempt runs; no event follows
    url = f"{empty.url}/rollouts/{claim.rollout_id}"
    page = slow_page(open_page, url, spans[0].name, "/spans\\?.*limit=(?!1&)")
    empty.run(store.add_many_spans(spans[1:2]))
    held(page, 1)
    empty.run(store.add_many_spans(spans[2:3]))
    page.wait_for_event("response", lambda r: "limit=1&" in r.url and r.json()["total"] == 3)
    page.wait_for_event("response", lambda r: "limit=1&" in r.url)  # the one before is drawn
    assert page.evaluate("held.length") == 1
    table = page.get_by_role("table", name="Spans")
    page.evaluate("held[0]()")
    expect(table).to_contain_text(spans[1].name)
    held(page, 2)
    page.evaluate("held[1]()")
    expect(table.get_by_role("row")).to_have_count(4)


def test_events_are_read_while_the_first_answer_is_slow(empty: Site, open_page: Open):
    page = open_page("about:blank")
    page.add_init_script(SLOW + "window.slow = /search$/;")
    page.goto(f"{empty.url}/rollouts")
    live(page)
    held(page, 1)
    every = page.get_by_role("button", name="All")
    expect(every).to_have_text("All0")
    empty.run(empty.store.enqueue_rollout("a task"))
    expect(every).to_have_text("All1")


def test_a_silent_stream_is_opened_again(empty: Site, open_page: Open):
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{empty.url}/rollouts")
    live(page)
    with page.expect_response(re.compile("/v1/agl/events$")):
        page.clock.fast_forward(46_000)
    live(page)


def test_cancel_and_retry_change_the_store(empty: Site, open_page: Open):
    store = empty.store
    claim = empty.run(claimed(store))
    page = open_page(f"{empty.url}/rollouts/{claim.rollout_id}")
    live(page)

    def status() -> str:
        rollout = empty.run(store.get_rollout_by_id(claim.rollout_id))
        assert rollout is not None
        return rollout.status

    confirm(page, "Cancel")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    assert status() == "cancelled"
    confirm(page, "Retry")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    assert status() == "requeuing"
    again = empty.run(store.dequeue_rollout("runner-1"))
    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (claim.rollout_id, 2)
    expect(page.get_by_label("Attempt").locator("option")).to_have_count(2)


def test_a_change_that_is_not_confirmed_changes_nothing(empty: Site, open_page: Open):
    claim = empty.run(claimed(empty.store))
    page = open_page(f"{empty.url}/rollouts/{claim.rollout_id}")
    live(page)
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    cancel.click()
    dialog = page.get_by_role("alertdialog", name="Cancel rollout?")
    for name in ("Back", "Cancel rollout", "Back"):  # the focus stays in the dialog
        expect(dialog.get_by_role("button", name=name)).to_be_focused()
        page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(cancel).to_be_focused()
    cancel.click()
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_be_hidden()
    # A rollout that ends meanwhile takes its question away.
    cancel.click()
    ids = claim.rollout_id, claim.attempt.attempt_id
    empty.run(empty.store.update_attempt(*ids, status="succeeded"))
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    rollout = empty.run(empty.store.get_rollout_by_id(claim.rollout_id))
    assert rollout is not None
    assert rollout.status == "succeeded"


def test_a_selection_is_cancelled_and_retried_together(empty: Site, open_page: Open):
    store = empty.store
    for number in range(3):
        empty.run(store.enqueue_rollout({"number": number}))
    page = open_page(f"{empty.url}/rollouts")
    live(page)
    for number in (0, 2):
        row = page.get_by_role("row", name=re.compile(f"number: {number}"))
        row.get_by_role("checkbox").check()
    confirm(page, "Cancel")
    expect(page.get_by_text("Cancelled 2", exact=True)).to_be_visible()
    statuses = [rollout.status for rollout in empty.run(store.query_rollouts())]
    assert sorted(statuses) == ["cancelled", "cancelled", "queuing"]
    confirm(page, "Retry")
    expect(page.get_by_text("Requeued 2", exact=True)).to_be_visible()
    statuses = [rollout.status for rollout in empty.run(store.query_rollouts())]
    assert sorted(statuses) == ["queuing", "requeuing", "requeuing"]


def test_a_selection_leaves_rollouts_that_its_change_does_not_fit(empty: Site, open_page: Open):
    store = empty.store
    first, second, third = (empty.run(claimed(store, {"number": number})) for number in range(3))
    page = open_page(f"{empty.url}/rollouts")
    live(page)

    def select(number: int) -> None:
        row = page.get_by_role("row", name=re.compile(f"number: {number}"))
        row.get_by_role("checkbox").check()

    def statuses() -> list[str]:
        found = [
            empty.run(store.get_rollout_by_id(one.rollout_id)) for one in (first, second, third)
        ]
        return [rollout.status for rollout in found if rollout]

    select(0)
    select(1)
    ids = first.rollout_id, first.attempt.attempt_id
    empty.run(store.update_attempt(*ids, status="succeeded"))
    confirm(page, "Cancel")
    expect(page.get_by_text("Cancelled 1; 1 had ended", exact=True)).to_be_visible()
    assert statuses() == ["succeeded", "cancelled", "preparing"]
    select(2)
    confirm(page, "Retry")
    expect(page.get_by_text("Requeued 2; 1 had not ended", exact=True)).to_be_visible()
    assert statuses() == ["requeuing", "requeuing", "preparing"]


def test_an_export_holds_what_a_rollout_has_become(empty: Site, open_page: Open):
    store = empty.store
    claim = empty.run(claimed(store))
    ids = claim.rollout_id, claim.attempt.attempt_id
    page = open_page(f"{empty.url}/rollouts")
    live(page)
    page.get_by_role("row", name="preparing").get_by_role("checkbox").check()
    empty.run(store.add_many_spans(trace(*ids, "how far?", 0.5, random.Random(1))))
    empty.run(store.update_attempt(*ids, status="succeeded"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    line = json.loads(download.value.path().read_text())
    assert line["rollout"]["status"] == line["rollout"]["attempt"]["status"] == "succeeded"
    assert line["rollout"]["end_time"] is not None
    assert len(line["spans"]) == 5


def test_a_call_of_an_unknown_vocabulary_does_not_hide_the_others(empty: Site, open_page: Open):
    claim = empty.run(claimed(empty.store))
    ids = claim.rollout_id, claim.attempt.attempt_id
    spans = list(trace(*ids, "how far?", None, random.Random(1)))
    broken = model_call([], {"role": "assistant", "parts": [], "finish_reason": "stop"}, 1, 1)
    broken["gen_ai.input.messages"] = "{not JSON"
    attributes = {**spans[1].attributes, **broken}
    spans[1] = spans[1].model_copy(update={"attributes": attributes})
    empty.run(empty.store.add_many_spans(spans))
    page = open_page(f"{empty.url}/rollouts/{claim.rollout_id}?view=Chat")
    expect(page.get_by_role("article", name="Call 2")).to_contain_text("Maple")
