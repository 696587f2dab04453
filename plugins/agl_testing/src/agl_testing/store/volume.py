"""Large traces and texts, statistics of retries, and what a store leaves alone."""

from __future__ import annotations

import copy
from typing import Any

from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, NamedResources, PromptTemplate, RolloutConfig
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests, claim

__all__ = ["VolumeTests"]

LARGE_TEXT = "0123456789abcdef" * 2**15  # 512 KiB
LARGE_SPANS = 24  # 12 MiB: past the 10 MB at which careless databases and bodies end
MANY_SPANS = 2500
"""More than a page of 1,000, and not a multiple of it."""
MANY_RESOURCES = 300

ODD_TEXTS = [
    "e\u0301 and \u00e9",  # equal when normalised, and not equal
    "\u212b \ufb01 \u2126",
    "line\r\nline\rline\n",
    "  spaces at both ends\t ",
    "\ufefffirst",
    "\u2028\u2029\x85\x1f\x7f",
    "'; DROP TABLE spans; --",
    "%s {0} $1 ? :name",
    "\\u0041 \\n \\",
]


class VolumeTests(StoreTests):
    """What is large or odd comes back to the character, and arguments stay as they are."""

    async def test_a_trace_of_twelve_megabytes_is_whole(self, store: LightningStore):
        claimed = await claim(store)
        spans = [
            span_of(claimed, i, name=str(i), attributes={"text": f"{i} {LARGE_TEXT}"})
            for i in range(1, LARGE_SPANS + 1)
        ]
        for start in range(0, LARGE_SPANS, 4):
            batch = spans[start : start + 4]
            stored = await store.add_many_spans(batch)
            assert [span.name for span in stored] == [span.name for span in batch]
        read = list(await store.query_spans(claimed.rollout_id))
        assert [span.name for span in read] == [span.name for span in spans]
        # No comparison of the texts: pytest would print megabytes of a difference.
        lengths = [len(str(span.attributes["text"])) for span in read]
        assert lengths == [len(f"{i} {LARGE_TEXT}") for i in range(1, LARGE_SPANS + 1)]
        assert all(a.attributes == b.attributes for a, b in zip(read, spans, strict=True)), (
            "changed"
        )

    async def test_a_trace_of_thousands_of_spans_is_whole(self, store: LightningStore):
        claimed = await claim(store)
        spans = [span_of(claimed, i, name=str(i)) for i in range(1, MANY_SPANS + 1)]
        for start in range(0, MANY_SPANS, 500):
            await store.add_many_spans(spans[start : start + 500])
        read = await store.query_spans(claimed.rollout_id)
        assert [span.name for span in read] == [span.name for span in spans]
        assert (await store.statistics()).get("total_spans") == MANY_SPANS

    async def test_a_large_task_is_whole(self, store: LightningStore):
        given = {"text": LARGE_TEXT * 4}
        (made,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=given)])
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        for rollout in (made, claimed, await store.get_rollout_by_id(made.rollout_id)):
            assert rollout is not None
            assert len(rollout.input["text"]) == len(given["text"])
            assert rollout.input["text"][-16:] == given["text"][-16:]

    async def test_a_snapshot_of_many_resources_is_whole(self, store: LightningStore):
        texts = {f"prompt {i}": f"Answer {i}." for i in range(MANY_RESOURCES)}
        given: NamedResources = {
            name: PromptTemplate(template=text, engine="f-string") for name, text in texts.items()
        }
        added = await store.add_resources(given)
        updated = await store.update_resources("mine", given)
        for snapshot in (
            added,
            updated,
            await store.get_resources_by_id(added.resources_id),
            await store.get_latest_resources(),
        ):
            assert snapshot is not None
            assert snapshot.resources == given

    async def test_texts_are_kept_to_the_character(self, store: LightningStore):
        claimed = await claim(store, {"texts": ODD_TEXTS, **dict.fromkeys(ODD_TEXTS, 1)})
        await store.add_span(
            span_of(claimed, 1, attributes={"texts": ODD_TEXTS, "t": ODD_TEXTS[0]})
        )
        await store.update_rollout(claimed.rollout_id, metadata={"texts": ODD_TEXTS})
        (span,) = await store.query_spans(claimed.rollout_id)
        assert list(span.attributes["texts"]) == ODD_TEXTS  # pyright: ignore[reportArgumentType]
        assert span.attributes["t"] == ODD_TEXTS[0]
        rollout = await store.get_rollout_by_id(claimed.rollout_id)
        assert rollout is not None
        assert rollout.input["texts"] == ODD_TEXTS
        assert set(rollout.input) == {"texts", *ODD_TEXTS}
        assert rollout.metadata == {"texts": ODD_TEXTS}

    async def test_statistics_count_the_attempts_of_a_retry(self, store: LightningStore):
        first = await claim(store, max_attempts=2, retry_condition=["failed"])
        await store.add_many_spans([span_of(first, i) for i in (1, 2)])
        await store.update_attempt(first.rollout_id, "latest", status="failed")
        names = ("total_rollouts", "total_attempts", "total_spans")
        waiting = await store.statistics()
        assert [waiting.get(name) for name in names] == [1, 1, 2], "the retry waits in the queue"
        second = await store.dequeue_rollout()
        assert second is not None
        await store.add_span(span_of(second, 3))
        await store.update_attempt(second.rollout_id, "latest", status="succeeded")
        statistics = await store.statistics()
        assert [statistics.get(name) for name in names] == [1, 2, 3]

    async def test_a_batch_has_the_retries_of_its_configs(self, store: LightningStore):
        conditions: Any = ["failed"]
        configs = [RolloutConfig(max_attempts=n, retry_condition=conditions) for n in (1, 3)]
        requests = [EnqueueRolloutRequest(input=i, config=c) for i, c in enumerate(configs)]
        rollouts = await store.enqueue_many_rollouts(requests)
        assert [rollout.config for rollout in rollouts] == configs
        while claimed := await store.dequeue_rollout():
            await store.update_attempt(claimed.rollout_id, "latest", status="failed")
        tries = [len(await store.query_attempts(rollout.rollout_id)) for rollout in rollouts]
        assert tries == [1, 3]

    async def test_arguments_are_left_alone(self, store: LightningStore):
        claimed = await claim(store)
        spans = [span_of(claimed, i, attributes={"list": [3, 1, 2]}) for i in (3, 1, 2)]
        requests = [EnqueueRolloutRequest(input={"n": [i]}, metadata={"i": i}) for i in (2, 0, 1)]
        metadata: dict[str, Any] = {"deep": {"list": [2, 1]}}
        resources, heartbeat = named_resources(), {"cpu": [2, 1]}
        enqueued = [(await store.enqueue_rollout(i)).rollout_id for i in range(3)]
        ids = sorted([claimed.rollout_id, *enqueued], reverse=True)
        pairs = [(claimed.rollout_id, claimed.attempt.attempt_id)] * 3
        statuses: Any = ["succeeded", "failed", "cancelled"]
        given = [spans, requests, metadata, resources, heartbeat, ids, pairs, statuses]
        before = copy.deepcopy(given)
        await store.enqueue_many_rollouts(requests)
        await store.enqueue_rollout({"n": metadata}, metadata=metadata)
        await store.start_rollout({"n": metadata}, metadata=metadata)
        await store.update_rollout(claimed.rollout_id, metadata=metadata)
        await store.update_attempt(claimed.rollout_id, "latest", metadata=metadata)
        await store.add_resources(resources)
        await store.update_resources("rs-own", resources)
        await store.update_worker("w", heartbeat)
        await store.add_many_spans(spans)
        await store.get_many_span_sequence_ids(pairs)
        await store.query_rollouts(rollout_id_in=ids, status_in=statuses)
        await store.wait_for_rollouts(rollout_ids=ids, timeout=0)
        assert given == before
