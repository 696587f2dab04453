"""Why a runner that was stopped from outside ended its attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_exec_cs import RunStore
from agl_store_memory import InMemoryLightningStore

CANCELLED = {"error": "AgentCancelledError: stopped", "error_type": "AgentCancelledError"}


def ended(store: RunStore, status: Any, metadata: dict[str, Any] | None) -> str:
    """Claim a rollout as ``Worker-7`` and end its attempt; return the id of the rollout."""

    async def run() -> str:
        await store.enqueue_rollout("task")
        claimed = await store.dequeue_rollout("Worker-7")
        assert claimed is not None
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        await store.update_attempt(*ids, status=status, metadata=metadata)
        return claimed.rollout_id

    return asyncio.run(run())


def metadata_of(store: RunStore, rollout_id: str) -> dict[str, Any] | None:
    attempt = asyncio.run(store.get_latest_attempt(rollout_id))
    assert attempt is not None
    return attempt.metadata


@pytest.mark.parametrize(
    ("status", "metadata", "error"),
    [
        ("failed", CANCELLED, "DeadlineExceeded; AgentCancelledError: stopped"),
        ("failed", {"error": "its runner died"}, "DeadlineExceeded; its runner died"),
        ("failed", {"error": "killed; DeadlineExceeded"}, "killed; DeadlineExceeded"),
        ("failed", {"error": "KeyError: 1", "error_type": "KeyError"}, "KeyError: 1"),
        ("succeeded", None, None),
    ],
)
def test_the_cause_is_put_first_where_the_agent_is_not_the_cause(
    status: str, metadata: dict[str, Any] | None, error: str | None
) -> None:
    store = RunStore(InMemoryLightningStore())
    rollout_id = ended(store, status, metadata)
    store.explain("Worker-8", "of another worker")
    store.explain("Worker-7", "DeadlineExceeded")
    store.explain("Worker-7", "too late")
    assert metadata_of(store, rollout_id) == (metadata and {**metadata, "error": error})


def test_only_the_last_attempt_is_explained() -> None:
    store = RunStore(InMemoryLightningStore())
    first = ended(store, "failed", CANCELLED)
    ended(store, "succeeded", None)
    store.explain("Worker-7", "DeadlineExceeded")
    assert metadata_of(store, first) == CANCELLED
