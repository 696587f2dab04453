"""Stores whose batches are the primitive: single calls are batches of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from agl_core.store import EncodedSpan, LightningStore, decode_spans, encode_span
from agl_core.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
    TaskInput,
    evolve,
)


class BatchingStore(LightningStore):
    """Base of stores that implement the batch calls; it implements the single calls."""

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        request = EnqueueRolloutRequest.model_construct(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]: ...

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]: ...

    def encode(self, span: Span) -> EncodedSpan:
        """Encode a span that was passed in; the result shares no mutable state with it."""
        return encode_span(span)

    async def add_span(self, span: Span) -> Span | None:
        return span if await self.add_encoded_spans([self.encode(span)]) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        encoded = [self.encode(span) for span in spans]
        stored = await self.add_encoded_spans(encoded)
        if len(stored) == len(encoded):
            return list(spans)
        kept = {id(item) for item in stored}
        return [span for span, item in zip(spans, encoded, strict=True) if id(item) in kept]

    @abstractmethod
    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]: ...

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    @abstractmethod
    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]: ...

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        **filters: Any,
    ) -> PaginatedResult[Span]:
        page = await self.query_encoded_spans(rollout_id, attempt_id, **filters)
        return evolve(page, {"items": decode_spans(page.items)})  # pyright: ignore[reportReturnType]

    @abstractmethod
    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        **filters: Any,
    ) -> PaginatedResult[EncodedSpan]: ...
