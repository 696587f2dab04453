"""A store whose calls go to another store."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from agl_core.store._base import LightningStore
from agl_core.store._values import LightningStoreCapabilities, StoreEvent

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def _delegated(method: F) -> F:
    name = method.__name__

    # Not the __dict__: there, abstract methods have the mark that makes a class abstract.
    @functools.wraps(method, updated=())
    async def call(self: DelegatingStore, *args: Any, **kwargs: Any) -> Any:
        return await self.delegate(name, *args, **kwargs)

    return cast("F", call)


class DelegatingStore(LightningStore):
    """Base of stores that pass each call to the store that :meth:`target` returns.

    The whole contract is delegated; a subclass overrides single methods.
    """

    def target(self) -> LightningStore:
        """Return the store that gets the next call."""
        raise NotImplementedError

    async def delegate(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the target; every async method of the contract calls this."""
        return await getattr(self.target(), name)(*args, **kwargs)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.target().capabilities

    def otlp_traces_endpoint(self) -> str:
        return self.target().otlp_traces_endpoint()

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        return self.target().attempt_token(rollout_id, attempt_id)

    def events(self) -> AsyncIterator[StoreEvent]:
        return self.target().events()

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return self.target().draw_span_sequence_id(rollout_id, attempt_id)

    # A loop would be shorter, but type checkers would consider the class abstract.
    statistics = _delegated(LightningStore.statistics)
    start_rollout = _delegated(LightningStore.start_rollout)
    enqueue_rollout = _delegated(LightningStore.enqueue_rollout)
    enqueue_many_rollouts = _delegated(LightningStore.enqueue_many_rollouts)
    dequeue_rollout = _delegated(LightningStore.dequeue_rollout)
    dequeue_many_rollouts = _delegated(LightningStore.dequeue_many_rollouts)
    start_attempt = _delegated(LightningStore.start_attempt)
    return_claim = _delegated(LightningStore.return_claim)
    query_rollouts = _delegated(LightningStore.query_rollouts)
    query_attempts = _delegated(LightningStore.query_attempts)
    get_rollout_by_id = _delegated(LightningStore.get_rollout_by_id)
    get_latest_attempt = _delegated(LightningStore.get_latest_attempt)
    query_resources = _delegated(LightningStore.query_resources)
    get_resources_by_id = _delegated(LightningStore.get_resources_by_id)
    get_latest_resources = _delegated(LightningStore.get_latest_resources)
    query_workers = _delegated(LightningStore.query_workers)
    get_worker_by_id = _delegated(LightningStore.get_worker_by_id)
    query_spans = _delegated(LightningStore.query_spans)
    query_encoded_spans = _delegated(LightningStore.query_encoded_spans)
    add_resources = _delegated(LightningStore.add_resources)
    update_resources = _delegated(LightningStore.update_resources)
    add_span = _delegated(LightningStore.add_span)
    add_many_spans = _delegated(LightningStore.add_many_spans)
    add_encoded_spans = _delegated(LightningStore.add_encoded_spans)
    add_otel_span = _delegated(LightningStore.add_otel_span)
    get_next_span_sequence_id = _delegated(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _delegated(LightningStore.get_many_span_sequence_ids)
    update_rollout = _delegated(LightningStore.update_rollout)
    update_attempt = _delegated(LightningStore.update_attempt)
    update_worker = _delegated(LightningStore.update_worker)
    wait_for_rollouts = _delegated(LightningStore.wait_for_rollouts)
    run_watchdog = _delegated(LightningStore.run_watchdog)
    close = _delegated(LightningStore.close)
