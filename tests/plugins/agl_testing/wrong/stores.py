"""Stores that are wrong in one way each; the suite must catch every one of them.

``CAUGHT_BY`` names the test that must fail.
"""

from __future__ import annotations

import asyncio
import time

from agl_core.errors import AttemptEndedError
from agl_core.plugins import notify
from agl_core.store import UNSET, EncodedSpan, decode_spans, encode_span
from agl_core.types import Span
from agl_store_kit import late_seconds, lifecycle
from agl_store_kit.watchdog import Watchdog
from agl_store_memory import InMemoryLightningStore


class Base(InMemoryLightningStore):
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(scan_debounce_seconds=0)


def _unbounded(span: Span) -> EncodedSpan:
    """Encode a span past the bounds of spans."""
    small = encode_span(span.model_copy(update={"attributes": {}}))
    fields = {name: getattr(small, name) for name in EncodedSpan.__slots__ if name[0] != "_"}
    return EncodedSpan(**fields, payload=span.model_dump_json().encode())


class TakesAnyNumberOfAttributes(Base):
    CAUGHT_BY = "test_a_span_has_a_largest_number_of_attributes"

    def encode(self, span):
        return _unbounded(span)


class TakesAnySize(Base):
    CAUGHT_BY = "test_a_span_has_a_largest_size"

    def encode(self, span):
        return _unbounded(span)

    async def add_encoded_spans(self, spans):
        self._backend.budget.size_of = lambda span: 1
        return await super().add_encoded_spans(spans)


class LastInFirstOut(Base):
    CAUGHT_BY = "test_claims_are_first_in_first_out"

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None, wait=0.0):
        with self._backend._lock:
            self._backend._queue = type(self._backend._queue)(
                reversed(self._backend._queue.items())
            )
        return await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)


class ClaimInTwoSteps(Base):
    CAUGHT_BY = "test_tasks_never_claim_the_same_rollout"

    async def dequeue_rollout(self, worker_id=None, *, wait=0.0):
        with self._backend._lock:
            entry = next(iter(self._backend._queue.values()), None)
        if entry is None:
            return None
        await asyncio.sleep(0)
        return await self.start_attempt(entry.rollout.rollout_id, worker_id)


class WaitsByPolling(Base):
    CAUGHT_BY = "test_a_waiting_claim_gets_work_as_it_arrives"

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None, wait=0.0):
        deadline = time.monotonic() + wait
        while True:
            found = await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id)
            if found or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(min(wait, 3))


class LosesTheClaimOfACancelledWaiter(Base):
    CAUGHT_BY = "test_a_cancelled_waiter_loses_no_work"

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None, wait=0.0):
        claim = super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        return await asyncio.shield(asyncio.ensure_future(claim))


class LosesAClaimThatIsCancelled(Base):
    CAUGHT_BY = "test_a_claim_that_is_cancelled_in_flight_loses_no_work"

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None, wait=0.0):
        claim = super().dequeue_many_rollouts(limit=limit, worker_id=worker_id, wait=wait)
        return await (claim if wait else asyncio.shield(asyncio.ensure_future(claim)))


class ForgetsTheRetriesOfTheInfrastructure(Base):
    CAUGHT_BY = "test_a_config_is_kept_whole"

    async def get_rollout_by_id(self, rollout_id):
        rollout = await super().get_rollout_by_id(rollout_id)
        if rollout is not None:
            rollout.config.infrastructure_retries = 2
        return rollout


class ClaimsMoreThanItsFlags(Base):
    CAUGHT_BY = "test_capabilities_agree_with_the_flags"

    @property
    def capabilities(self):
        return {**super().capabilities, "zero_copy": True}


class CountsFailuresOfTheInfrastructureAsAttempts(Base):
    CAUGHT_BY = "test_random_histories_follow_the_lifecycle"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        attempt = await super().update_attempt(rollout_id, attempt_id, **changes)
        rollout = await self.get_rollout_by_id(rollout_id)
        assert rollout is not None
        if "infrastructure" in (attempt.metadata or {}) and rollout.status == "requeuing":
            await self.update_rollout(rollout_id, status="failed")
        return attempt


class StoresARewardAfterTheEnd(Base):
    CAUGHT_BY = "test_an_agent_writes_nothing_after_the_end"

    async def add_encoded_spans(self, spans):
        try:
            return await super().add_encoded_spans(spans)
        except AttemptEndedError:
            reset = late_seconds.set(None)
            await super().add_encoded_spans(spans)
            late_seconds.reset(reset)
            raise


class TerminalIsNotFinal(Base):
    CAUGHT_BY = "test_cancelled_is_final_for_its_attempt"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        attempt = await super().update_attempt(rollout_id, attempt_id, **changes)
        if "status" in changes:
            with self._backend._lock:
                entry = self._backend._entry(rollout_id)
            status = lifecycle.rollout_status_after(attempt, entry.rollout.config)
            await self.update_rollout(rollout_id, status=status)
        return attempt


class RecomputesOnEveryUpdate(Base):
    CAUGHT_BY = "test_metadata_and_heartbeat_alone_recompute_nothing"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        if "status" not in changes:
            latest = await self.get_latest_attempt(rollout_id)
            if latest is not None:
                changes["status"] = latest.status
        return await super().update_attempt(rollout_id, attempt_id, **changes)


class LateSpanSwallowsTheRetry(Base):
    CAUGHT_BY = "test_a_span_revives_no_attempt_that_ended"

    async def add_encoded_spans(self, spans):
        stored = await super().add_encoded_spans(spans)
        for span in stored:
            rollout = await self.get_rollout_by_id(span.rollout_id)
            if rollout is not None and rollout.status == "requeuing":
                await self.update_rollout(span.rollout_id, status="running")
        return stored


class ReturnsWhatItDidNotStore(Base):
    CAUGHT_BY = "test_what_a_batch_returns_is_what_it_stored"

    async def add_encoded_spans(self, spans):
        await super().add_encoded_spans(spans)
        return list(spans)


class StoresHalfABatch(Base):
    CAUGHT_BY = "test_a_batch_with_an_unknown_id_stores_nothing"

    async def add_encoded_spans(self, spans):
        stored = []
        for span in spans:
            stored += await super().add_encoded_spans([span])
        return stored


class KeysSpansWithoutTheAttempt(Base):
    CAUGHT_BY = "test_the_same_span_id_in_another_attempt_is_another_span"

    async def add_encoded_spans(self, spans):
        new = []
        for span in spans:
            known = await self.query_encoded_spans(span.rollout_id, span_id=span.span_id)
            if not known:
                new.append(span)
        return await super().add_encoded_spans(new)


class DropsUnknownKeys(Base):
    CAUGHT_BY = "test_a_span_comes_back_whole"

    async def query_spans(self, *args, **kwargs):
        page = await super().query_spans(*args, **kwargs)
        plain = [Span(**{name: getattr(span, name) for name in Span.model_fields}) for span in page]
        return page.model_copy(update={"items": plain})


class TurnsFloatsIntoIntegers(Base):
    CAUGHT_BY = "test_a_span_comes_back_whole"

    async def add_encoded_spans(self, spans: list[EncodedSpan]):
        def mangle(span: Span) -> Span:
            values = {
                k: int(v) if isinstance(v, float) and v.is_integer() else v
                for k, v in span.attributes.items()
            }
            return span.model_copy(update={"attributes": values})

        mangled = [encode_span(mangle(span)) for span in decode_spans(spans)]
        return await super().add_encoded_spans(mangled)


class CountsPerAttempt(Base):
    CAUGHT_BY = "test_sequence_ids_count_per_rollout_over_all_attempts"

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        pairs = [(f"{rollout}/{attempt}", attempt) for rollout, attempt in rollout_attempt_ids]
        return await super().get_many_span_sequence_ids(pairs)


class CounterIgnoresExplicitIds(Base):
    CAUGHT_BY = "test_an_explicit_sequence_id_raises_the_counter"

    async def add_encoded_spans(self, spans):
        before = dict(self._backend._sequence_ids)
        stored = await super().add_encoded_spans(spans)
        self._backend._sequence_ids = before
        return stored


class SharesItsRecords(Base):
    CAUGHT_BY = "test_what_is_returned_is_not_shared"

    async def get_rollout_by_id(self, rollout_id):
        entry = self._backend._entries.get(rollout_id)
        return None if entry is None else entry.rollout

    async def dequeue_rollout(self, worker_id=None, *, wait=0.0):
        claimed = await super().dequeue_rollout(worker_id, wait=wait)
        if claimed is not None:
            claimed.input = self._backend._entry(claimed.rollout_id).rollout.input
        return claimed


class ForgetsTheEndTime(Base):
    CAUGHT_BY = "test_an_ended_attempt_ends_its_rollout"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        attempt = await super().update_attempt(rollout_id, attempt_id, **changes)
        if attempt.status in ("timeout", "unresponsive"):
            attempt.end_time = None
        return attempt


class KeepsTheEndTime(Base):
    CAUGHT_BY = "test_leaving_a_terminal_status_clears_the_end_time"

    async def update_rollout(self, rollout_id, **changes):
        before = await self.get_rollout_by_id(rollout_id)
        after = await super().update_rollout(rollout_id, **changes)
        if before is not None and before.end_time is not None and after.end_time is None:
            after.end_time = before.end_time
        return after


class WorkerIsSetByAnyUpdate(Base):
    CAUGHT_BY = "test_a_late_update_does_not_touch_a_worker_that_moved_on"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        attempt = await super().update_attempt(rollout_id, attempt_id, **changes)
        worker = self._backend._worker(attempt.worker_id)
        if worker is not None and attempt.status in ("failed", "succeeded"):
            freed = {"status": "idle", "current_rollout_id": None, "current_attempt_id": None}
            self._backend._workers[worker.worker_id] = worker.model_copy(update=freed)
        return attempt


class WaitsForUnknownIds(Base):
    CAUGHT_BY = "test_unknown_ids_are_not_waited_for"

    async def wait_for_rollouts(self, *, rollout_ids, timeout=None):
        known = [i for i in rollout_ids if await self.get_rollout_by_id(i) is not None]
        if len(known) < len(rollout_ids):
            await asyncio.sleep(2 if timeout is None else timeout)
        return await super().wait_for_rollouts(rollout_ids=known, timeout=timeout)


class FinishedOnceIsFinishedForever(Base):
    CAUGHT_BY = "test_a_rollout_that_was_finished_before_is_waited_for_again"

    def __init__(self) -> None:
        super().__init__()
        self.finished: set[str] = set()

    async def wait_for_rollouts(self, *, rollout_ids, timeout=None):
        wanted = [i for i in rollout_ids if i not in self.finished]
        if not wanted:
            return []
        done = await super().wait_for_rollouts(rollout_ids=wanted, timeout=timeout)
        self.finished |= {rollout.rollout_id for rollout in done}
        return done


class WatchdogSleeps(Base):
    CAUGHT_BY = "test_waiting_notices_a_timeout_by_itself"

    async def wait_for_rollouts(self, *, rollout_ids, timeout=None):
        self._watchdog = Watchdog(self._backend, 10.0**9)
        self._watchdog._last_scan = time.monotonic()
        wait = super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=1)
        return await wait


class OrHasNoEmptyCase(Base):
    CAUGHT_BY = "test_filters_combine"

    async def query_rollouts(self, **options):
        page = await super().query_rollouts(**options)
        conditions = ("status_in", "rollout_id_in", "rollout_id_contains")
        if options.get("filter_logic") == "or" and not any(
            options.get(name) is not None for name in conditions
        ):
            return page.model_copy(update={"items": [], "total": 0})
        return page


class ContainsIgnoresCase(Base):
    CAUGHT_BY = "test_filters_pages_and_sorts"

    async def query_spans(self, rollout_id, attempt_id=None, *, name_contains=None, **options):
        page = await super().query_spans(rollout_id, attempt_id, **options)
        if name_contains is None:
            return page
        items = [span for span in page if name_contains.lower() in span.name.lower()]
        return page.model_copy(update={"items": items, "total": len(items)})


class TotalOfThePageOnly(Base):
    CAUGHT_BY = "test_pages"

    async def query_rollouts(self, **options):
        page = await super().query_rollouts(**options)
        return page.model_copy(update={"total": len(page.items)})


class ResourcesAreMerged(Base):
    CAUGHT_BY = "test_an_update_replaces_and_counts"

    async def update_resources(self, resources_id, resources):
        known = await self.get_resources_by_id(resources_id)
        merged = {**(known.resources if known else {}), **resources}
        return await super().update_resources(resources_id, merged)


class LatestIsTheLastAdded(Base):
    CAUGHT_BY = "test_the_latest_is_the_last_added_or_updated"

    async def update_resources(self, resources_id, resources):
        known = resources_id in self._backend._resources
        latest = self._backend._latest_resources
        update = await super().update_resources(resources_id, resources)
        if known:
            self._backend._latest_resources = latest
        return update


class HistoriesDrift(Base):
    """Keeps a worker idle that starts an attempt or a rollout itself: one step in nine."""

    CAUGHT_BY = "test_random_histories_follow_the_lifecycle"

    async def start_attempt(self, rollout_id, worker_id=None):
        started = await super().start_attempt(rollout_id, worker_id)
        self.free(worker_id)
        return started

    async def start_rollout(self, *args, worker_id=None, **kwargs):
        started = await super().start_rollout(*args, worker_id=worker_id, **kwargs)
        self.free(worker_id)
        return started

    def free(self, worker_id):
        worker = self._backend._worker(worker_id)
        if worker is not None:
            freed = {"status": "idle", "current_rollout_id": None, "current_attempt_id": None}
            self._backend._workers[worker.worker_id] = worker.model_copy(update=freed)


class EventsComeTwice(Base):
    CAUGHT_BY = "test_every_change_is_an_event_in_order"

    async def events(self):
        async for event in super().events():
            yield event
            yield event


# -- the event of a rollout's end -----------------------------------------------------------------


class SendsEveryEndTwice(Base):
    CAUGHT_BY = "test_an_end_is_sent_once_with_the_whole_rollout"

    async def update_attempt(self, rollout_id, *args, status=UNSET, **options):
        attempt = await super().update_attempt(rollout_id, *args, status=status, **options)
        if status in ("succeeded", "failed"):
            notify("rollout_ended", rollout=await self.get_rollout_by_id(rollout_id))
        return attempt


class SendsAnEndPerAttempt(SendsEveryEndTwice):
    CAUGHT_BY = "test_a_retry_is_no_end"


class SendsAnEndBeforeTheChange(Base):
    CAUGHT_BY = "test_what_a_refused_call_would_change_is_not_sent"

    async def update_attempt(self, rollout_id, *args, status=UNSET, **options):
        notify("rollout_ended", rollout=await self.get_rollout_by_id(rollout_id))
        return await super().update_attempt(rollout_id, *args, status=status, **options)


# -- batches, pages, orders and fields -----------------------------------------------------------


class StoresTheFirst64OfABatch(Base):
    CAUGHT_BY = "test_hundreds_of_spans_of_two_rollouts_are_one_batch"

    async def add_encoded_spans(self, spans):
        return await super().add_encoded_spans(spans[:64])


class EnqueuesTheFirst64OfABatch(Base):
    CAUGHT_BY = "test_batches_of_hundreds_are_whole_and_in_order"

    async def enqueue_many_rollouts(self, rollouts):
        return await super().enqueue_many_rollouts(rollouts[:64])


class ListsAThousandAtMost(Base):
    CAUGHT_BY = "test_a_list_past_a_thousand_is_whole"

    async def query_rollouts(self, *, limit=-1, **options):
        return await super().query_rollouts(limit=1000 if limit == -1 else limit, **options)


class ReadsAThousandSpansAtMost(Base):
    CAUGHT_BY = "test_the_spans_of_a_long_trace_are_whole"

    async def query_spans(self, rollout_id, attempt_id=None, *, limit=-1, **options):
        limit = 1000 if limit == -1 else limit
        return await super().query_spans(rollout_id, attempt_id, limit=limit, **options)


class ListsFiftyAtMost(Base):
    CAUGHT_BY = "test_lists_past_fifty_are_whole"

    async def query_workers(self, *, limit=-1, **options):
        return await super().query_workers(limit=50 if limit == -1 else limit, **options)


class DescendsByReversing(Base):
    CAUGHT_BY = "test_rollouts_sort_by_every_field"

    async def query_rollouts(self, *, sort_order="asc", limit=-1, offset=0, **options):
        page = await super().query_rollouts(**options)
        items = list(page.items)[:: 1 if sort_order == "asc" else -1]
        items = items[offset:] if limit == -1 else items[offset : offset + limit]
        return page.model_copy(update={"items": items, "limit": limit, "offset": offset})


class SortsMissingTimesFirst(Base):
    CAUGHT_BY = "test_attempts_sort_by_every_field"

    async def query_attempts(self, rollout_id, *, sort_by="sequence_id", **options):
        page = await super().query_attempts(rollout_id, sort_by=sort_by, **options)
        if sort_by == "last_heartbeat_time":
            items = sorted(page.items, key=lambda attempt: attempt.last_heartbeat_time is not None)
            return page.model_copy(update={"items": items})
        return page


class ForgetsTheOffsetOfASortedPage(Base):
    CAUGHT_BY = "test_workers_sort_by_every_field"

    async def query_workers(self, *, sort_by=None, offset=0, **options):
        page = await super().query_workers(
            sort_by=sort_by, offset=0 if sort_by else offset, **options
        )
        return page.model_copy(update={"offset": offset})


class SortsSpansByNameOnly(Base):
    CAUGHT_BY = "test_spans_sort_by_every_field"

    async def query_spans(self, rollout_id, attempt_id=None, *, sort_by="sequence_id", **options):
        sort_by = "name" if sort_by == "parent_id" else sort_by
        return await super().query_spans(rollout_id, attempt_id, sort_by=sort_by, **options)


class AModeWipesTheMetadata(Base):
    CAUGHT_BY = "test_an_update_of_a_rollout_keeps_its_other_fields"

    async def update_rollout(self, rollout_id, **changes):
        if set(changes) == {"mode"}:
            changes["metadata"] = {}
        return await super().update_rollout(rollout_id, **changes)


class AHeartbeatWipesTheNotes(Base):
    CAUGHT_BY = "test_an_update_of_an_attempt_keeps_its_other_fields"

    async def update_attempt(self, rollout_id, attempt_id, **changes):
        if set(changes) == {"last_heartbeat_time"}:
            changes["metadata"] = {}
        return await super().update_attempt(rollout_id, attempt_id, **changes)


def through_javascript(value):
    """Return a value as it comes back from a format that has only one kind of number."""
    if isinstance(value, dict):
        return {key: through_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return [through_javascript(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class KeepsTasksInJavascript(Base):
    CAUGHT_BY = "test_numbers_keep_their_types"

    async def get_rollout_by_id(self, rollout_id):
        rollout = await super().get_rollout_by_id(rollout_id)
        return rollout and rollout.model_copy(update={"input": through_javascript(rollout.input)})


class KeepsResourcesInJavascript(Base):
    CAUGHT_BY = "test_numbers_in_resources_keep_their_types"

    async def add_resources(self, resources):
        changed = {
            name: type(item).model_validate(through_javascript(item.model_dump()))
            for name, item in resources.items()
        }
        return await super().add_resources(changed)


class ListsAttemptsThatAreLongOver(Base):
    CAUGHT_BY = "test_a_list_shows_no_attempt_past_its_time"

    async def query_attempts(self, rollout_id, **options):
        watchdog, self._watchdog = self._watchdog, Watchdog(self._backend, 10.0**9)
        self._watchdog._last_scan = time.monotonic()
        try:
            return await super().query_attempts(rollout_id, **options)
        finally:
            self._watchdog = watchdog
