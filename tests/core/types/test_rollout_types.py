import pytest
from pydantic import ValidationError

from agl_core.types import Attempt, AttemptedRollout, PaginatedResult, Rollout, RolloutConfig


def attempt(rollout_id: str = "ro-1") -> Attempt:
    return Attempt(rollout_id=rollout_id, attempt_id="at-1", sequence_id=1, start_time=1.0)


def test_every_key_is_written_also_the_absent_ones():
    rollout = AttemptedRollout(rollout_id="ro-1", input={"q": 1}, start_time=1, attempt=attempt())
    assert rollout.model_dump() == {
        "rollout_id": "ro-1",
        "input": {"q": 1},
        "start_time": 1.0,
        "end_time": None,
        "mode": None,
        "resources_id": None,
        "status": "queuing",
        "config": {
            "timeout_seconds": None,
            "unresponsive_seconds": None,
            "max_attempts": 1,
            "retry_condition": [],
            "infrastructure_retries": 2,
            "replay": None,
        },
        "metadata": None,
        "attempt": {
            "rollout_id": "ro-1",
            "attempt_id": "at-1",
            "sequence_id": 1,
            "start_time": 1.0,
            "end_time": None,
            "status": "preparing",
            "worker_id": None,
            "last_heartbeat_time": None,
            "metadata": None,
        },
    }
    assert AttemptedRollout.model_validate_json(rollout.model_dump_json()) == rollout


def test_an_attempt_of_another_rollout_is_refused():
    with pytest.raises(ValidationError, match="belongs to rollout ro-2"):
        AttemptedRollout(rollout_id="ro-1", input=1, start_time=1, attempt=attempt("ro-2"))


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (RolloutConfig, {"max_attempts": 0}),
        (RolloutConfig, {"retry_condition": ["cancelled"]}),
        (Rollout, {"rollout_id": "ro-1", "input": 1, "start_time": 1, "mode": "training"}),
        (Rollout, {"rollout_id": "ro-1", "input": 1, "start_time": 1, "status": "timeout"}),
        (Rollout, {"rollout_id": "ro-1", "start_time": 1}),
    ],
)
def test_values_outside_their_domain_are_refused(model, values):
    with pytest.raises(ValidationError):
        model(**values)


def test_unknown_keys_are_ignored():
    assert not hasattr(RolloutConfig(max_attempts=2, novel=True), "novel")  # pyright: ignore[reportCallIssue]


def test_a_page_is_a_sequence_of_its_items():
    page = PaginatedResult[int](items=[10, 11, 12], limit=3, offset=3, total=10)
    assert (len(page), page[0], page[-1], list(page[1:]), list(page)) == (
        3,
        10,
        12,
        [11, 12],
        [10, 11, 12],
    )
    assert set(page.model_dump()) == {"items", "limit", "offset", "total"}
    assert repr(page) == str(page) == "<PaginatedResult (3:6 of 10) [10, ...]>"


def test_an_empty_page_is_falsy_and_an_unlimited_one_shows_no_end():
    page = PaginatedResult[int](items=[], limit=-1, offset=0, total=0)
    assert not page
    assert repr(page) == "<PaginatedResult (0: of 0) []>"
