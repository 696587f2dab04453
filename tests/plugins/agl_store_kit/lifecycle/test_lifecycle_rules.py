"""Each rule of the lifecycle by example."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from agl_core import status as records
from agl_core.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus, Worker
from agl_store_kit import lifecycle
from agl_store_kit.lifecycle import Change

NOW = 1000.0


def rollout(status: str = "running", **config: Any) -> Rollout:
    return Rollout(
        rollout_id="ro-1",
        input="task",
        start_time=1.0,
        status=status,  # pyright: ignore[reportArgumentType]
        end_time=5.0 if status in ("failed", "succeeded", "cancelled") else None,
        config=RolloutConfig(**config),
    )


def attempt(status: str = "running", sequence_id: int = 1, **fields: Any) -> Attempt:
    return Attempt(
        rollout_id="ro-1",
        attempt_id=f"at-{sequence_id}",
        sequence_id=sequence_id,
        start_time=2.0,
        status=status,  # pyright: ignore[reportArgumentType]
        **fields,
    )


def worker(status: str = "busy", on: str | None = "at-1", **fields: Any) -> Worker:
    return Worker(
        worker_id="w",
        status=status,  # pyright: ignore[reportArgumentType]
        current_rollout_id=None if on is None else "ro-1",
        current_attempt_id=on,
        **fields,
    )


def write(to: Attempt, of: Rollout, who: Worker | None = None, **changes: Any) -> Change:
    latest = changes.pop("is_latest", True)
    return lifecycle.update_attempt(of, to, changes, is_latest=latest, worker=who, now=NOW)


class TestCreatingAndClaiming:
    def test_a_new_rollout_waits_in_the_queue(self):
        config = RolloutConfig(max_attempts=3)
        made = lifecycle.new_rollout(
            rollout_id="ro-1",
            input={"x": 1},
            mode="val",
            resources_id="rs-1",
            config=config,
            metadata={"k": 2},
            now=NOW,
        )
        assert made == Rollout(
            rollout_id="ro-1",
            input={"x": 1},
            start_time=NOW,
            mode="val",
            resources_id="rs-1",
            status="queuing",
            config=config,
            metadata={"k": 2},
        )

    @pytest.mark.parametrize("status", get_args(RolloutStatus))
    def test_an_attempt_starts_from_any_status(self, status: str):
        before = rollout(status)
        change = lifecycle.begin_attempt(before, attempt_id="at-9", sequence_id=4, now=NOW)
        assert change.rollout is not None
        assert (change.rollout.status, change.rollout.end_time) == ("preparing", None)
        assert change.queue == ("remove" if status in ("queuing", "requeuing") else None)
        assert change.worker is None
        assert change.attempt == Attempt(
            rollout_id="ro-1", attempt_id="at-9", sequence_id=4, start_time=NOW, status="preparing"
        )
        assert before == rollout(status), "the record passed in stays as it was"

    def test_a_claim_stamps_both_times_of_the_worker(self):
        known = worker("idle", None, heartbeat_stats={"cpu": 1}, last_idle_time=3.0)
        change = lifecycle.begin_attempt(
            rollout("queuing"),
            attempt_id="at-1",
            sequence_id=1,
            now=NOW,
            worker_id="w",
            worker=known,
            dequeued=True,
        )
        assert change.attempt is not None
        assert change.attempt.worker_id == "w"
        assert change.worker == worker(
            "busy",
            "at-1",
            heartbeat_stats={"cpu": 1},
            last_idle_time=3.0,
            last_busy_time=NOW,
            last_dequeue_time=NOW,
        )

    def test_a_direct_start_creates_the_worker_without_a_dequeue_time(self):
        change = lifecycle.begin_attempt(
            rollout("queuing"), attempt_id="at-1", sequence_id=1, now=NOW, worker_id="w"
        )
        assert change.worker == worker("busy", "at-1", last_busy_time=NOW)

    def test_no_work_makes_a_worker_idle(self):
        idle = worker("idle", None, last_idle_time=NOW, last_dequeue_time=NOW)
        assert lifecycle.nothing_to_claim("w", None, now=NOW) == idle
        assert lifecycle.nothing_to_claim("w", worker(), now=NOW) == idle

    def test_no_work_again_only_stamps_the_dequeue(self):
        known = worker("idle", None, last_idle_time=1.0, last_dequeue_time=1.0)
        after = lifecycle.nothing_to_claim("w", known, now=NOW)
        assert after == worker("idle", None, last_idle_time=1.0, last_dequeue_time=NOW)

    @pytest.mark.parametrize(
        ("listed", "status"),
        [(["at-1", "at-2"], "busy"), (["at-2"], "idle"), ([], "idle"), ("at-1", "idle")],
    )
    def test_a_worker_with_a_free_place_stays_busy_while_it_lists_its_attempt(
        self, listed: Any, status: str
    ):
        known = worker(heartbeat_stats={records.RUNNING_ATTEMPTS: listed})
        after = lifecycle.nothing_to_claim("w", known, now=NOW)
        assert (after.status, after.last_dequeue_time) == (status, NOW)

    @pytest.mark.parametrize(
        ("known", "freed"), [(worker(), True), (worker(on="at-2"), False), (None, False)]
    )
    def test_only_the_worker_of_a_superseded_attempt_is_released(self, known: Any, freed: bool):
        after = lifecycle.released_from(attempt(worker_id="w"), known, now=NOW)
        assert after == (worker("unknown", None, last_idle_time=NOW) if freed else None)


class TestAbandonedAttempts:
    @pytest.mark.parametrize(
        ("on", "listed", "beat", "abandoned"),
        [
            ("at-1", None, None, False),  # assigned to it
            ("at-2", None, NOW, True),  # a runner of one attempt at a time has another
            (None, None, NOW, True),
            (None, None, None, False),  # a new record, which may not name the claim yet
            (None, None, NOW - 1, False),
            ("at-2", ["at-1", "at-2"], NOW, False),
            ("at-2", ["at-2"], NOW + 3, True),  # a later heartbeat does not list it
            ("at-2", ["at-2"], NOW + 1, False),  # the claim may not have reached the runner
            ("at-2", [], None, False),
        ],
    )
    def test_a_heartbeat_lists_what_runs(
        self, on: str | None, listed: list[str] | None, beat: float | None, abandoned: bool
    ):
        who = worker("busy" if on else "idle", on, last_heartbeat_time=beat)
        if listed is not None:
            who.heartbeat_stats = {records.RUNNING_ATTEMPTS: listed}
        claimed = attempt().model_copy(update={"start_time": NOW})
        assert records.is_abandoned(who, claimed) is abandoned

    @pytest.mark.parametrize(
        ("metadata", "interrupted"),
        [
            (None, False),
            ({"note": "x"}, False),
            ({"error": "the runner was killed"}, True),
            ({"error": "cancelled", "error_type": "AgentCancelledError"}, True),
            ({"error": "division by zero", "error_type": "ZeroDivisionError"}, False),
        ],
    )
    def test_an_error_without_the_agents_exception_is_an_interruption(
        self, metadata: dict[str, str] | None, interrupted: bool
    ):
        ended = attempt("failed", metadata=metadata)
        assert records.was_interrupted(ended) is interrupted


class TestSpans:
    def arrive(self, of: Rollout, at: Attempt, who: Worker | None = None, latest: bool = True):
        return lifecycle.span_arrived(of, at, is_latest=latest, worker=who, now=NOW)

    def test_the_first_span_starts_attempt_and_rollout(self):
        change = self.arrive(rollout("preparing"), attempt("preparing"))
        assert change.rollout is not None and change.attempt is not None
        assert change.rollout.status == change.attempt.status == "running"
        assert change.attempt.last_heartbeat_time == NOW
        assert change.queue is None

    def test_further_spans_are_heartbeats(self):
        change = self.arrive(rollout(), attempt())
        assert change == Change(attempt=attempt(last_heartbeat_time=NOW))

    def test_a_running_attempt_pulls_a_preparing_rollout_along(self):
        change = self.arrive(rollout("preparing"), attempt())
        assert change.rollout is not None
        assert change.rollout.status == "running"

    def test_a_running_attempt_swallows_no_retry(self):
        change = self.arrive(rollout("requeuing"), attempt())
        assert change == Change(attempt=attempt(last_heartbeat_time=NOW))

    @pytest.mark.parametrize("status", ["failed", "timeout", "succeeded"])
    @pytest.mark.parametrize("of", ["requeuing", "preparing", "failed"])
    def test_a_dead_attempt_stays_dead(self, status: str, of: str):
        change = self.arrive(rollout(of), attempt(status, end_time=5.0))
        alive = attempt(status, end_time=5.0, last_heartbeat_time=NOW)
        assert change == Change(attempt=alive)

    def test_a_revived_attempt_takes_its_rollout_out_of_the_queue(self):
        change = self.arrive(rollout("requeuing"), attempt("unresponsive", end_time=5.0))
        assert change.rollout is not None
        assert change.rollout.status == "running"
        assert change.queue == "remove"
        assert change.attempt == attempt(last_heartbeat_time=NOW)

    def test_reviving_changes_no_finished_rollout(self):
        change = self.arrive(rollout("failed"), attempt("unresponsive", end_time=5.0))
        assert change == Change(attempt=attempt(last_heartbeat_time=NOW))

    def test_reviving_an_old_attempt_leaves_the_retry_alone(self):
        change = self.arrive(rollout("preparing"), attempt("unresponsive"), latest=False)
        assert change == Change(attempt=attempt(last_heartbeat_time=NOW))

    def test_a_revived_attempt_gets_its_worker_back(self):
        lost = worker("unknown", None)
        change = self.arrive(rollout("requeuing"), attempt("unresponsive", worker_id="w"), lost)
        assert change.worker == worker("busy", "at-1", last_busy_time=NOW)

    @pytest.mark.parametrize(("status", "latest"), [("queuing", True), ("requeuing", False)])
    def test_a_worker_is_not_called_back_to_a_rollout_that_stays_in_the_queue(
        self, status: str, latest: bool
    ):
        revived, lost = attempt("unresponsive", worker_id="w"), worker("unknown", None)
        change = self.arrive(rollout(status), revived, lost, latest=latest)
        assert (change.rollout, change.worker) == (None, None)

    @pytest.mark.parametrize("who", [worker("busy", "at-7"), worker("idle", None), None])
    def test_a_worker_that_went_on_is_not_called_back(self, who: Worker | None):
        change = self.arrive(rollout("requeuing"), attempt("unresponsive", worker_id="w"), who)
        assert change.worker is None


class TestUpdatingAttempts:
    @pytest.mark.parametrize("status", ["failed", "succeeded", "timeout", "unresponsive"])
    def test_an_end_sets_the_end_time(self, status: str):
        change = write(attempt(), rollout(), status=status)
        assert change.attempt == attempt(status, end_time=NOW)

    @pytest.mark.parametrize("status", ["preparing", "running"])
    def test_going_on_clears_the_end_time(self, status: str):
        change = write(attempt("failed", end_time=5.0), rollout("failed"), status=status)
        assert change.attempt == attempt(status, end_time=None)
        assert change.rollout is not None
        assert (change.rollout.status, change.rollout.end_time) == (status, None)

    @pytest.mark.parametrize("status", get_args(AttemptStatus))
    @pytest.mark.parametrize("retry", [True, False])
    @pytest.mark.parametrize("sequence_id", [1, 2, 3])
    def test_the_rollout_follows(self, status: Any, retry: bool, sequence_id: int):
        config = RolloutConfig(max_attempts=3, retry_condition=[status] if retry else [])
        after = lifecycle.rollout_status_after(attempt(status, sequence_id), config)
        if status in ("preparing", "running", "succeeded"):
            assert after == status
        else:
            assert after == ("requeuing" if retry and sequence_id < 3 else "failed")

    @pytest.mark.parametrize(
        ("sequence_id", "before"), [(1, "queuing"), (2, "requeuing"), (3, "requeuing")]
    )
    def test_only_a_first_attempt_claims_a_rollout_that_was_never_tried(self, sequence_id, before):
        assert lifecycle.status_before_claim(attempt("preparing", sequence_id)) == before

    def test_success_finishes_the_rollout(self):
        change = write(attempt(), rollout(), status="succeeded")
        assert change.rollout is not None
        assert (change.rollout.status, change.rollout.end_time) == ("succeeded", NOW)
        assert change.queue is None

    def test_a_retry_goes_to_the_tail(self):
        config = {"max_attempts": 2, "retry_condition": ["failed"]}
        change = write(attempt(), rollout("running", **config), status="failed")
        assert change.rollout is not None
        assert (change.rollout.status, change.rollout.end_time) == ("requeuing", None)
        assert change.queue == "append"

    def test_a_queued_rollout_keeps_its_place(self):
        config = {"max_attempts": 2, "retry_condition": ["failed"]}
        change = write(attempt(), rollout("queuing", **config), status="failed")
        assert change.rollout is not None
        assert change.rollout.status == "requeuing"
        assert change.queue is None

    def test_the_same_status_again_changes_no_rollout(self):
        change = write(attempt("failed"), rollout("failed"), status="failed")
        assert change.rollout is None

    def test_without_a_status_nothing_is_recomputed(self):
        change = write(attempt(), rollout("failed"), metadata={"a": 1}, last_heartbeat_time=9.0)
        expected = attempt(metadata={"a": 1}, last_heartbeat_time=9.0)
        assert change == Change(attempt=expected)

    def test_an_old_attempt_moves_nothing(self):
        change = write(attempt(), rollout(), status="failed", is_latest=False)
        assert change == Change(attempt=attempt("failed", end_time=NOW))

    @pytest.mark.parametrize("status", get_args(AttemptStatus))
    def test_a_cancelled_rollout_stays_cancelled(self, status: str):
        assert write(attempt(), rollout("cancelled"), status=status).rollout is None


class TestWorkersOfAttempts:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("succeeded", worker("idle", None, last_idle_time=NOW)),
            ("failed", worker("idle", None, last_idle_time=NOW)),
            ("timeout", worker("unknown", None, last_idle_time=NOW)),
            ("unresponsive", worker("unknown", None, last_idle_time=NOW)),
            ("running", worker("busy", "at-1", last_busy_time=NOW)),
        ],
    )
    def test_the_worker_on_the_attempt_follows(self, status: str, expected: Worker):
        change = write(attempt(worker_id="w"), rollout(), worker(), status=status)
        assert change.worker == expected

    @pytest.mark.parametrize("who", [worker("busy", "at-2"), worker("unknown", None), None])
    def test_a_worker_elsewhere_is_left_alone(self, who: Worker | None):
        change = write(attempt(worker_id="w"), rollout(), who, status="failed")
        assert change.worker is None

    def test_the_same_attempt_id_of_another_rollout_is_elsewhere(self):
        elsewhere = worker().model_copy(update={"current_rollout_id": "ro-2"})
        assert write(attempt(worker_id="w"), rollout(), elsewhere, status="failed").worker is None

    def test_without_status_or_worker_it_is_left_alone(self):
        change = write(attempt(worker_id="w"), rollout(), worker(), metadata={})
        assert change.worker is None

    @pytest.mark.parametrize("who", [None, worker("idle", None)])
    def test_naming_a_free_worker_puts_it_on(self, who: Worker | None):
        change = write(attempt(), rollout(), who, worker_id="w")
        assert change.worker == worker("busy", "at-1", last_busy_time=NOW)
        assert change.attempt == attempt(worker_id="w")

    def test_naming_a_worker_that_has_something_else_does_not(self):
        assert write(attempt(), rollout(), worker("busy", "at-2"), worker_id="w").worker is None

    def test_naming_cannot_undo_a_cancellation(self):
        free = worker("unknown", None)
        change = write(attempt(), rollout("cancelled"), free, worker_id="w", status="running")
        assert change.worker is None

    @pytest.mark.parametrize("status", ["queuing", "requeuing"])
    def test_naming_gives_nobody_an_attempt_whose_rollout_waits(self, status: str):
        """Whoever claims the rollout begins another attempt, and nobody would free the worker."""
        free = worker("idle", None)
        assert write(attempt(), rollout(status), free, worker_id="w").worker is None
        running = write(attempt(), rollout(status), free, worker_id="w", status="running")
        assert running.queue == "remove"
        assert running.worker == worker("busy", "at-1", last_busy_time=NOW)

    def test_naming_the_worker_of_an_ended_attempt_gives_it_nothing(self):
        change = write(attempt("failed"), rollout("failed"), worker("idle", None), worker_id="w")
        assert change.worker is None

    def test_an_empty_name_clears_the_association_and_moves_nobody(self):
        change = write(attempt(worker_id="w"), rollout(), None, worker_id="", status="failed")
        assert change.worker is None
        assert change.attempt == attempt("failed", worker_id="", end_time=NOW)

    @pytest.mark.parametrize("status", ["failed", "succeeded"])
    @pytest.mark.parametrize("metadata", [None, {records.INFRASTRUCTURE: "proxy"}])
    def test_a_late_failure_does_not_requeue_a_finished_rollout(self, status: str, metadata: Any):
        of = rollout(status, max_attempts=3, retry_condition=["failed"])
        change = write(attempt("unresponsive"), of, status="failed", metadata=metadata)
        assert change.queue is None
        assert (change.rollout or of).status == "failed"

    def test_a_late_success_still_counts(self):
        change = write(attempt("unresponsive"), rollout("failed"), status="succeeded")
        assert change.rollout is not None
        assert change.rollout.status == "succeeded"

    def test_a_repeated_final_status_keeps_the_end_time(self):
        ended = attempt("failed", end_time=3.0)
        change = write(ended, rollout("failed"), status="failed")
        assert change.attempt == ended


class TestUpdatingRollouts:
    def write(self, to: Rollout, at: Attempt | None = None, who: Worker | None = None, **changes):
        return lifecycle.update_rollout(to, changes, attempt=at, worker=who, now=NOW)

    def test_fields_change_and_nothing_else(self):
        change = self.write(rollout("failed"), input=2, mode=None, metadata=None)
        expected = rollout("failed").model_copy(update={"input": 2, "metadata": None})
        assert change == Change(expected)

    @pytest.mark.parametrize("before", get_args(RolloutStatus))
    @pytest.mark.parametrize("after", get_args(RolloutStatus))
    def test_any_status_may_follow_any(self, before: str, after: str):
        change = self.write(rollout(before), attempt(worker_id="w"), worker(), status=after)
        assert change.rollout is not None
        assert change.rollout.status == after
        finished = after in ("failed", "succeeded", "cancelled")
        assert change.rollout.end_time == (NOW if finished else None)
        queued = [status in ("queuing", "requeuing") for status in (before, after)]
        expected = {(False, True): "append", (True, False): "remove"}.get(tuple(queued))  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert change.queue == expected
        assert change.attempt is None
        released = worker("unknown", None, last_idle_time=NOW)
        unassigns = after in ("cancelled", "queuing", "requeuing")
        assert change.worker == (released if unassigns else None)

    @pytest.mark.parametrize(
        ("at", "who"),
        [(None, None), (attempt(worker_id="w"), None), (attempt(), worker("busy", "at-2"))],
    )
    def test_cancelling_releases_only_the_worker_on_it(self, at: Any, who: Any):
        assert self.write(rollout(), at, who, status="cancelled").worker is None


class TestHeartbeatsAndWatchdog:
    def test_a_heartbeat_creates_an_unknown_worker(self):
        made = lifecycle.worker_heartbeat("w", None, {"heartbeat_stats": {"cpu": 1}}, now=NOW)
        assert made == worker("unknown", None, heartbeat_stats={"cpu": 1}, last_heartbeat_time=NOW)

    def test_a_heartbeat_changes_nothing_else(self):
        known = worker("busy", "at-1", heartbeat_stats={"cpu": 1})
        after = lifecycle.worker_heartbeat("w", known, {}, now=NOW)
        assert after == worker(heartbeat_stats={"cpu": 1}, last_heartbeat_time=NOW)

    @pytest.mark.parametrize("status", get_args(RolloutStatus))
    def test_what_is_watched(self, status: str):
        runs = status in ("preparing", "running")
        assert lifecycle.is_watched(rollout(status, timeout_seconds=1)) is runs
        assert lifecycle.is_watched(rollout(status, unresponsive_seconds=1)) is runs
        assert lifecycle.is_watched(rollout(status)) is False

    @pytest.mark.parametrize(
        ("config", "heartbeat", "now", "expected"),
        [
            ({}, None, 1e9, None),
            ({"timeout_seconds": 10}, None, 12.0, None),
            ({"timeout_seconds": 10}, None, 12.1, "timeout"),
            ({"timeout_seconds": 10}, 12.0, 12.1, "timeout"),
            ({"unresponsive_seconds": 10}, None, 12.0, None),
            ({"unresponsive_seconds": 10}, None, 12.1, "unresponsive"),
            ({"unresponsive_seconds": 10}, 5.0, 15.0, None),
            ({"unresponsive_seconds": 10}, 5.0, 15.1, "unresponsive"),
            ({"unresponsive_seconds": 10, "timeout_seconds": 10}, None, 13.0, "timeout"),
        ],
    )
    def test_verdicts(self, config: Any, heartbeat: Any, now: float, expected: str | None):
        late = attempt(last_heartbeat_time=heartbeat)
        assert lifecycle.verdict(rollout(**config), late, now=now) == expected

    @pytest.mark.parametrize("status", ["failed", "succeeded", "timeout", "unresponsive"])
    def test_no_verdict_on_what_does_not_run(self, status: str):
        limits = rollout("running", timeout_seconds=1)
        assert lifecycle.verdict(limits, attempt(status), now=NOW) is None
        assert lifecycle.verdict(rollout("failed", timeout_seconds=1), attempt(), now=NOW) is None


class TestReturnedClaims:
    def returned(self, to: Attempt, of: Rollout, who: Worker | None = None, latest: bool = True):
        return lifecycle.return_claim(of, to, is_latest=latest, worker=who, now=NOW)

    def test_the_rollout_waits_again_and_the_attempt_is_given_up(self):
        change = self.returned(attempt("preparing"), rollout("preparing", max_attempts=1), worker())
        assert change.rollout is not None
        assert (change.rollout.status, change.rollout.end_time) == ("requeuing", None)
        assert change.queue == "append"
        assert change.attempt is not None
        assert (change.attempt.status, change.attempt.end_time) == ("unresponsive", NOW)
        assert records.infrastructure_failures(change.attempt) == 1
        assert change.worker is not None
        assert (change.worker.status, change.worker.last_idle_time) == ("idle", NOW)
        assert (change.worker.current_rollout_id, change.worker.current_attempt_id) == (None, None)
        assert lifecycle.is_returned_claim(change.attempt)

    @pytest.mark.parametrize("status", ["preparing", "failed", "unresponsive"])
    def test_another_attempt_is_no_returned_claim(self, status: str):
        assert not lifecycle.is_returned_claim(attempt(status))

    @pytest.mark.parametrize("who", [None, worker(on="at-2"), worker("idle", on=None)])
    def test_a_worker_that_is_elsewhere_stays_there(self, who: Worker | None):
        assert self.returned(attempt("preparing"), rollout("preparing"), who).worker is None

    @pytest.mark.parametrize(
        ("to", "of", "latest"),
        [
            (attempt("preparing"), rollout("preparing"), False),
            (attempt("running"), rollout("preparing"), True),
            (attempt("preparing"), rollout("cancelled"), True),
            (attempt("running"), rollout("running"), True),
            (attempt("failed"), rollout("failed"), True),
        ],
    )
    def test_nothing_changes_once_somebody_has_acted(self, to: Attempt, of: Rollout, latest: bool):
        assert self.returned(to, of, worker(), latest) == Change()


@pytest.mark.parametrize(
    ("status", "heard", "claimed", "shown"),
    [
        ("idle", NOW - 10, None, "idle"),
        ("idle", NOW - 100, None, "unknown"),
        ("idle", NOW - 100, NOW - 10, "idle"),
        ("idle", None, NOW - 100, "unknown"),
        ("idle", None, None, "idle"),
        ("busy", NOW - 100, NOW - 100, "unknown"),
        ("busy", NOW - 10, NOW - 100, "busy"),
        ("unknown", NOW - 1, None, "unknown"),
    ],
)
def test_a_dead_worker_is_neither_idle_nor_busy(
    status: Any, heard: float | None, claimed: float | None, shown: str
):
    known = Worker(
        worker_id="w", status=status, last_heartbeat_time=heard, last_dequeue_time=claimed
    )
    assert records.worker_status(known, now=NOW) == shown


class TestInfrastructure:
    """Failures that proxy or store reported, and those of the agent."""

    @staticmethod
    def ended(number: int, lost: int, config: RolloutConfig, **more: Any) -> str:
        said = {records.INFRASTRUCTURE_FAILURES: lost, **more}
        return lifecycle.rollout_status_after(attempt("failed", number, metadata=said), config)

    def test_it_is_retried_without_a_condition(self):
        config = RolloutConfig()
        said = {records.INFRASTRUCTURE: "proxy"}
        assert [self.ended(n, n, config, **said) for n in (1, 2, 3)] == [
            *("requeuing", "requeuing", "failed")
        ]

    def test_it_does_not_count_towards_the_agents(self):
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        assert self.ended(3, 2, config) == "requeuing"
        assert self.ended(4, 2, config) == "failed"
        assert self.ended(3, 1, config) == "failed"

    def test_it_can_be_switched_off(self):
        said = {records.INFRASTRUCTURE: "store"}
        assert self.ended(1, 1, RolloutConfig(infrastructure_retries=0), **said) == "failed"
        assert self.ended(1, 1, RolloutConfig(), repeatable=False, **said) == "failed"

    @pytest.mark.parametrize("said", [True, 1.0, "1", -1, None])
    def test_a_count_that_is_none_is_not_believed(self, said: Any):
        kept = attempt(metadata={records.INFRASTRUCTURE_FAILURES: said})
        assert records.infrastructure_failures(kept) == 0


@pytest.mark.parametrize(
    ("status", "cancelled", "ended"),
    [
        *[("running", False, None), ("timeout", False, None), ("failed", False, 7.0)],
        *[("running", True, 5.0), ("succeeded", True, 5.0), ("unresponsive", True, 5.0)],
    ],
)
def test_when_an_attempt_has_ended_for_good(status: str, cancelled: bool, ended: float | None):
    of = rollout("cancelled" if cancelled else "running")
    over = attempt(status, end_time=None if status == "running" else 7.0)
    assert lifecycle.ended_at(of, over) == ended
