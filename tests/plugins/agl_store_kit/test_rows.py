"""Records as rows of a table."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.types import Attempt, NamedResources, ResourcesUpdate, Rollout, Worker
from agl_store_kit import rows

ROLLOUT = Rollout.model_validate(
    {
        "rollout_id": "ro-1",
        "input": {"number": 2**70, "text": "ß\0", "none": None, "nan": math.inf},
        "start_time": 1.5,
        "mode": "train",
        "config": {"max_attempts": 3},
        "metadata": {"a": [1]},
    }
)
ATTEMPT = Attempt(
    rollout_id="ro-1", attempt_id="at-1", sequence_id=2, start_time=2.0, metadata={"b": {}}
)
WORKER = Worker(worker_id="w", heartbeat_stats={"cpu": 0.5})
RESOURCES: NamedResources = {}
SNAPSHOT = ResourcesUpdate(
    resources_id="rs", create_time=1.0, update_time=2.0, version=1, resources=RESOURCES
)


def row_of(record: Any, fields: tuple[str, ...]) -> list[Any]:
    payloads = ("input", "config", "metadata", "heartbeat_stats", "resources")
    return [
        rows.encode(name, getattr(record, name)) if name in payloads else getattr(record, name)
        for name in fields
    ]


@pytest.mark.parametrize(
    ("record", "fields", "build"),
    [
        (ROLLOUT, rows.ROLLOUT_FIELDS, rows.rollout_from),
        (ATTEMPT, rows.ATTEMPT_FIELDS, rows.attempt_from),
        (WORKER, rows.WORKER_FIELDS, rows.worker_from),
        (SNAPSHOT, rows.RESOURCES_FIELDS, rows.resources_from),
    ],
    ids=["rollout", "attempt", "worker", "snapshot"],
)
def test_a_record_is_built_as_it_was_stored(record: Any, fields: tuple[str, ...], build: Any):
    row = row_of(record, fields)
    assert build(row) == record
    text = [value.decode() if isinstance(value, bytes) else value for value in row]
    assert build(text) == record
    for place, value in enumerate(row):
        if isinstance(value, bytes):
            damaged = [*row[:place], b"\xff", *row[place + 1 :]]
            owner = "at-1" if record is ATTEMPT else row[0]
            message = f"the stored {fields[place]} of {owner} cannot be read"
            with pytest.raises(rows.UnreadableRecordError, match=message):
                build(damaged)


def test_payloads_that_were_left_out_are_none():
    row = [None if name in ("input", "metadata") else value for name, value in named(ROLLOUT)]
    rollout = rows.rollout_from(row)
    assert (rollout.input, rollout.metadata) == (None, None)
    assert rollout.config == ROLLOUT.config


def named(rollout: Rollout) -> list[tuple[str, Any]]:
    return list(zip(rows.ROLLOUT_FIELDS, row_of(rollout, rows.ROLLOUT_FIELDS), strict=True))


def test_a_rollout_has_the_attempt_of_its_join_or_none():
    row = row_of(ROLLOUT, rows.ROLLOUT_FIELDS)
    assert rows.record_from([*row, *row_of(ATTEMPT, rows.ATTEMPT_FIELDS)]) == (ROLLOUT, ATTEMPT)
    assert rows.record_from([*row, *[None] * len(rows.ATTEMPT_FIELDS)]) == (ROLLOUT, None)


def test_a_value_without_a_json_form_is_refused_by_its_name():
    with pytest.raises(InvalidArgumentError, match=r"^input cannot be stored as JSON: "):
        rows.encode("input", object())


def test_columns_have_the_alias_of_their_table():
    assert rows.columns(("a", "b")) == "a, b"
    assert rows.columns(("a", "b"), "r.") == "r.a, r.b"


def test_a_state_has_the_attempt_and_the_worker_of_its_joins_or_none():
    row = [3, *row_of(ROLLOUT, rows.ROLLOUT_FIELDS)]
    attempt, worker = row_of(ATTEMPT, rows.ATTEMPT_FIELDS), row_of(WORKER, rows.WORKER_FIELDS)
    no_attempt, no_worker = [None] * len(attempt), [None] * len(worker)
    assert rows.state_from([*row, *attempt, *worker]) == (ROLLOUT, 3, ATTEMPT, WORKER)
    assert rows.state_from([*row, *attempt, *no_worker]) == (ROLLOUT, 3, ATTEMPT, None)
    assert rows.state_from([*row, *no_attempt, *no_worker]) == (ROLLOUT, 3, None, None)
