"""Documents: the fields of each record, and records built from documents.

A rollout and its attempts are **one** document, so that one atomic write stores everything that the
lifecycle changes in one step. Fields that queries look at are plain values. Payloads (input,
config, metadata, ...) are JSON text, because JSON allows what BSON does not: any key, integers of
any size.

``attempts`` maps attempt ids to attempts in the order in which they began. MongoDB keeps the order
of fields, and the place of an attempt is its sequence id: a claim can append an attempt without
reading how many there are.

Records are built without validation, because the documents were written from validated records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson import Binary

from agl_core.store import EncodedSpan, StoredSpan
from agl_core.types import (
    Attempt,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    Worker,
    evolve,
)
from agl_store_kit import RolloutState, lifecycle, rows

__all__ = [
    "WITHOUT_INPUT",
    "Document",
    "Record",
    "attempt_fields",
    "changed_payload_fields",
    "encode",
    "encode_resources",
    "record_from",
    "resources_from",
    "rollout_document",
    "span_document",
    "span_from",
    "status_fields",
    "worker_fields",
    "worker_from",
]

Document = Mapping[str, Any]

WITHOUT_INPUT: Final = {"input": 0}
"""Projection of a rollout's document for callers that do not look at the input."""

_PLAIN_FIELDS: Final = ("mode", "resources_id")
_JSON_FIELDS: Final = ("input", "config", "metadata")
_ATTEMPT_FIELDS: Final = tuple(
    name for name in Attempt.model_fields if name not in ("rollout_id", "sequence_id")
)
_SPAN_FIELDS: Final = ("rollout_id", *rows.SPAN_FIELDS)


@dataclass(frozen=True, slots=True)
class Record:
    """A rollout with all its attempts, and the version that a write to it must find."""

    rollout: Rollout
    attempts: list[Attempt]
    version: int
    release: dict[str, Any] | None
    """The worker that was taken off its attempt last; see :mod:`agl_store_mongo.workers`."""
    recent: list[str]
    """Tokens of the last changes, by which a change whose reply was lost is recognised."""
    keys: list[str]
    """Idempotency keys of the last changes of the status."""
    reward: float | None
    """The primary reward of the latest attempt that arrived last."""

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def find(self, attempt_id: str) -> Attempt | None:
        """Return an attempt by its id, or the latest for ``"latest"``."""
        if attempt_id == "latest":
            return self.latest
        return next((item for item in self.attempts if item.attempt_id == attempt_id), None)

    def state(self, attempt_id: str) -> RolloutState:
        """Return what a decision about an attempt is based on, without the worker."""
        return RolloutState(self.rollout, len(self.attempts), self.find(attempt_id), None)


def encode(name: str, value: Any) -> str:
    """Return a payload's JSON; raises as :func:`agl_store_kit.rows.encode`."""
    return rows.encode(name, value).decode()


# -- rollouts and attempts -------------------------------------------------------------------------


def rollout_document(rollout: Rollout, attempt: Attempt | None, ordinal: int) -> dict[str, Any]:
    """Return the document of a new rollout; without an attempt it is in the queue."""
    return {
        "rollout_id": rollout.rollout_id,
        "ordinal": ordinal,
        "version": 0,
        "start_time": rollout.start_time,
        "queue_position": ordinal if attempt is None else None,
        "request": None,
        "release": None,
        "recent": [],
        "keys": [],
        "attempts": {} if attempt is None else {attempt.attempt_id: attempt_fields(attempt)},
        **status_fields(rollout),
        **{name: getattr(rollout, name) for name in _PLAIN_FIELDS},
        **{name: encode(name, getattr(rollout, name)) for name in _JSON_FIELDS},
        "timed": _is_timed(rollout),
    }


def status_fields(rollout: Rollout) -> dict[str, Any]:
    """Return the fields that the lifecycle changes by itself."""
    return {"status": rollout.status, "end_time": rollout.end_time}


def changed_payload_fields(before: Rollout, after: Rollout) -> dict[str, Any]:
    """Return the other fields, those that are other objects than before."""
    fields: dict[str, Any] = {}
    for name in (*_PLAIN_FIELDS, *_JSON_FIELDS):
        value = getattr(after, name)
        if value is not getattr(before, name):
            fields[name] = encode(name, value) if name in _JSON_FIELDS else value
    if "config" in fields:
        fields["timed"] = _is_timed(after)
    return fields


def _is_timed(rollout: Rollout) -> bool:
    """Whether the watchdog looks at the rollout while it runs."""
    return lifecycle.is_watched(evolve(rollout, {"status": "running"}))


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt's fields in its rollout's document."""
    fields = {name: getattr(attempt, name) for name in _ATTEMPT_FIELDS}
    fields["metadata"] = encode("metadata", attempt.metadata)
    return fields


def record_from(document: Document) -> Record:
    """Build a record; a document that was read without its input has None there."""
    rollout_id = document["rollout_id"]
    values = {"input": None, **document}
    rollout = rows.rollout_from([values[name] for name in rows.ROLLOUT_FIELDS])
    attempts = [
        _attempt_from(rollout_id, sequence_id, fields)
        for sequence_id, fields in enumerate(document["attempts"].values(), start=1)
    ]
    return Record(
        rollout,
        attempts,
        document["version"],
        document["release"],
        document["recent"],
        document.get("keys", []),  # documents of before have none
        document.get("reward"),
    )


def _attempt_from(rollout_id: str, sequence_id: int, fields: Document) -> Attempt:
    values = {**fields, "rollout_id": rollout_id, "sequence_id": sequence_id}
    return rows.attempt_from([values[name] for name in rows.ATTEMPT_FIELDS])


# -- workers, resources, spans ---------------------------------------------------------------------


def worker_fields(worker: Worker) -> dict[str, Any]:
    """Return a worker's fields in its document."""
    return {
        **worker.__dict__,
        "heartbeat_stats": encode("heartbeat_stats", worker.heartbeat_stats),
    }


def worker_from(document: Document) -> Worker:
    """Build a worker."""
    return rows.worker_from([document[name] for name in rows.WORKER_FIELDS])


def encode_resources(resources: NamedResources) -> str:
    """Return resources as JSON."""
    return rows.encode_resources(resources).decode()


def resources_from(document: Document) -> ResourcesUpdate:
    """Build a snapshot."""
    return rows.resources_from([document[name] for name in rows.RESOURCES_FIELDS])


def span_document(span: EncodedSpan, ordinal: int) -> dict[str, Any]:
    """Return a span's document."""
    document = {name: getattr(span, name) for name in _SPAN_FIELDS}
    return {**document, "ordinal": ordinal, "payload": Binary(span.payload)}


def span_from(document: Document) -> EncodedSpan:
    """Build an encoded span from its payload alone."""
    return StoredSpan(bytes(document["payload"]))
