"""Faults of stores, of the one in memory and of one that outlives its object."""

from __future__ import annotations

import unicodedata
from typing import Any

from agl_core.errors import StoreDataError
from agl_core.store import UNSET, decode_spans, encode_span
from agl_store_memory import InMemoryLightningStore

MEBIBYTE = 2**20


class Store(InMemoryLightningStore):
    SUITE, FIXTURE, FLAGS = "StoreSuite", "store", ("thread_safe", "events", "ends", "scans")
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(scan_debounce_seconds=0)


GOOD = (Store,)


# -- sizes ----------------------------------------------------------------------------------------


class StopsAtTenMegabytes(Store):
    """It refuses spans once it holds 10 MB."""

    CAUGHT_BY = "test_a_trace_of_twelve_megabytes_is_whole"

    held = 0

    async def add_encoded_spans(self, spans):
        self.held += sum(len(span.payload) for span in spans)
        if self.held > 10_000_000:
            raise StoreDataError("the database is full")
        return await super().add_encoded_spans(spans)


class DropsPastTenMegabytes(Store):
    """It says that it stored spans, and does not, once it holds 10 MB."""

    CAUGHT_BY = "test_a_trace_of_twelve_megabytes_is_whole"

    held = 0

    async def add_encoded_spans(self, spans):
        self.held += sum(len(span.payload) for span in spans)
        if self.held > 10_000_000:
            return list(spans)
        return await super().add_encoded_spans(spans)


class CutsTextsAt64Kilobytes(Store):
    """It stores the first 65,535 characters of a text, as a column of MySQL does."""

    CAUGHT_BY = "test_a_trace_of_twelve_megabytes_is_whole"

    async def add_encoded_spans(self, spans):
        def cut(span):
            values = {k: v[:65535] if isinstance(v, str) else v for k, v in span.attributes.items()}
            return span.model_copy(update={"attributes": values})

        stored = await super().add_encoded_spans([encode_span(cut(s)) for s in decode_spans(spans)])
        known = {span.span_id for span in stored}
        return [span for span in spans if span.span_id in known]


class RefusesLargeTasks(Store):
    """It refuses a task of more than a megabyte."""

    CAUGHT_BY = "test_a_large_task_is_whole"

    async def enqueue_many_rollouts(self, rollouts):
        if any(len(repr(request.input)) > MEBIBYTE for request in rollouts):
            raise StoreDataError("the task is too large")
        return await super().enqueue_many_rollouts(rollouts)


class ReadsTenMegabytesAtMost(Store):
    """It ends a list of spans after 10 MB."""

    CAUGHT_BY = "test_a_trace_of_twelve_megabytes_is_whole"

    async def query_spans(self, *args: Any, **options: Any):
        page = await super().query_spans(*args, **options)
        kept, size = [], 0
        for span in page.items:
            size += sum(len(str(value)) for value in span.attributes.values())
            if size > 10_000_000:
                break
            kept.append(span)
        return page.model_copy(update={"items": kept})


class KeepsADozenResources(Store):
    """A snapshot has at most twelve resources."""

    CAUGHT_BY = "test_a_snapshot_of_many_resources_is_whole"

    async def add_resources(self, resources):
        return await super().add_resources(dict(list(resources.items())[:12]))


class TakesAnEmptyTaskForNone(Store):
    """In a batch, a task that is empty becomes None."""

    CAUGHT_BY = "test_a_batch_takes_any_json_value"

    async def enqueue_many_rollouts(self, rollouts):
        changed = [one.model_copy(update={"input": one.input or None}) for one in rollouts]
        return await super().enqueue_many_rollouts(changed)


class SortsWhatItWaitedFor(Store):
    """A wait returns the rollouts in the order in which they have ended."""

    CAUGHT_BY = "test_neither_start_nor_end_decides_the_order"

    async def wait_for_rollouts(self, **options: Any):
        done = await super().wait_for_rollouts(**options)
        return sorted(done, key=lambda rollout: rollout.end_time or 0, reverse=True)


class DropsLateSpans(Store):
    """A batch of spans that comes after the end is dropped."""

    CAUGHT_BY = "test_late_spans_are_stored"

    async def add_many_spans(self, spans):
        kept = []
        for span in spans:
            rollout = await self.get_rollout_by_id(span.rollout_id)
            if rollout is None or rollout.end_time is None:
                kept.append(span)
        return await super().add_many_spans(kept)


# -- long traces ----------------------------------------------------------------------------------


class DropsTheSecondHalf(Store):
    """It returns the first half of a trace of more than 400 spans."""

    CAUGHT_BY = "test_a_trace_of_thousands_of_spans_is_whole"

    async def query_spans(self, *args: Any, **options: Any):
        page = await super().query_spans(*args, **options)
        kept = page.items[: len(page.items) // 2] if len(page.items) > 400 else page.items
        return page.model_copy(update={"items": kept})


class StoresTwoThousandSpans(Store):
    """It stores the first two thousand spans of an attempt and drops the others."""

    CAUGHT_BY = "test_a_trace_of_thousands_of_spans_is_whole"

    async def add_encoded_spans(self, spans):
        kept = []
        for span in spans:
            held = await self.query_encoded_spans(span.rollout_id, span.attempt_id, limit=0)
            if held.total + len(kept) < 2000:
                kept.append(span)
        return await super().add_encoded_spans(kept)


# -- statistics, retries --------------------------------------------------------------------------


class CountsARetryAsARollout(Store):
    """Each attempt counts as a rollout."""

    CAUGHT_BY = "test_statistics_count_the_attempts_of_a_retry"

    async def statistics(self):
        found = await super().statistics()
        counts = (found.get("total_rollouts", 0), found.get("total_attempts", 0))
        return {**found, "total_rollouts": max(counts)}


class CountsAWaitingRetryTwice(Store):
    """While a retry waits in the queue, its rollout counts twice."""

    CAUGHT_BY = "test_statistics_count_the_attempts_of_a_retry"

    async def statistics(self):
        found = await super().statistics()
        waiting = await self.query_rollouts(status_in=["requeuing"], limit=0)
        return {**found, "total_rollouts": found.get("total_rollouts", 0) + waiting.total}


class ForgetsRetriesInStatistics(Store):
    """Only the latest attempt of a rollout is counted."""

    CAUGHT_BY = "test_statistics_count_the_attempts_of_a_retry"

    async def statistics(self):
        found = await super().statistics()
        began = [r for r in (await self.query_rollouts()).items if getattr(r, "attempt", None)]
        return {**found, "total_attempts": len(began)}


class CountsSpansOfTheLatestAttempt(Store):
    """The spans of an attempt that was retried are not counted."""

    CAUGHT_BY = "test_statistics_count_the_attempts_of_a_retry"

    async def statistics(self):
        found = await super().statistics()
        spans = 0
        for rollout in (await self.query_rollouts()).items:
            if getattr(rollout, "attempt", None):
                spans += (await self.query_spans(rollout.rollout_id, "latest", limit=0)).total
        return {**found, "total_spans": spans}


class RetriesOnceTooOften(Store):
    """`max_attempts` counts the retries, not the attempts."""

    CAUGHT_BY = "test_a_batch_has_the_retries_of_its_configs"

    async def enqueue_many_rollouts(self, rollouts):
        def more(request):
            if request.config is None or request.config.max_attempts < 2:
                return request
            raised = {"max_attempts": request.config.max_attempts + 1}
            config = request.config.model_copy(update=raised)
            return request.model_copy(update={"config": config})

        return await super().enqueue_many_rollouts([more(request) for request in rollouts])


# -- what it does to its arguments ----------------------------------------------------------------


class SortsTheCallersSpans(Store):
    """It sorts the list of spans that it was given."""

    CAUGHT_BY = "test_arguments_are_left_alone"

    async def add_many_spans(self, spans):
        if isinstance(spans, list):
            spans.sort(key=lambda span: (span.sequence_id, span.span_id))
        return await super().add_many_spans(spans)


class EmptiesTheCallersRequests(Store):
    """It takes requests out of the list that it was given."""

    CAUGHT_BY = "test_arguments_are_left_alone"

    async def enqueue_many_rollouts(self, rollouts):
        result = await super().enqueue_many_rollouts(list(rollouts))
        if isinstance(rollouts, list):
            rollouts.clear()
        return result


class SortsTheIdsOfAWait(Store):
    """It sorts the list of ids that it was given to wait for."""

    CAUGHT_BY = "test_arguments_are_left_alone"

    async def wait_for_rollouts(self, *, rollout_ids, timeout=None):
        if isinstance(rollout_ids, list):
            rollout_ids.sort()
        return await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)


class WritesIntoTheCallersMetadata(Store):
    """It leaves a key in the metadata that it was given."""

    CAUGHT_BY = "test_arguments_are_left_alone"

    async def enqueue_rollout(self, input, *args: Any, metadata=None, **options: Any):
        result = await super().enqueue_rollout(input, *args, metadata=metadata, **options)
        if metadata is not None:
            metadata["stored"] = True
        return result


# -- values and errors ----------------------------------------------------------------------------


class NormalisesUnicode(Store):
    """It stores texts in composed form, so that a token's text differs."""

    CAUGHT_BY = "test_texts_are_kept_to_the_character"

    async def add_encoded_spans(self, spans):
        def normal(span):
            values = {
                k: unicodedata.normalize("NFC", v) if isinstance(v, str) else v
                for k, v in span.attributes.items()
            }
            return span.model_copy(update={"attributes": values})

        await super().add_encoded_spans([encode_span(normal(s)) for s in decode_spans(spans)])
        return list(spans)


class TurnsUnknownIdsIntoKeyErrors(Store):
    """An unknown rollout is a KeyError."""

    CAUGHT_BY = "test_an_unknown_rollout_is_an_error"

    async def update_rollout(self, rollout_id, **changes):
        if await self.get_rollout_by_id(rollout_id) is None:
            raise KeyError(rollout_id)
        return await super().update_rollout(rollout_id, **changes)


class HidesUnknownIds(Store):
    """An update of an unknown attempt does nothing."""

    CAUGHT_BY = "test_unknown_ids_are_errors_of_their_own"

    async def update_attempt(self, rollout_id, attempt_id, *, status=UNSET, **changes):
        try:
            return await super().update_attempt(rollout_id, attempt_id, status=status, **changes)
        except ValueError:
            return None


class TurnsBadSpansIntoSilence(Store):
    """Spans of an unknown attempt are dropped."""

    CAUGHT_BY = "test_a_batch_with_an_unknown_id_stores_nothing"

    async def add_encoded_spans(self, spans):
        try:
            return await super().add_encoded_spans(spans)
        except ValueError:
            return []
