"""Stores whose batches are the primitive: single calls are batches of one."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

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
from agl_store_kit.slices import Pauses

_DECODED_BYTES: Final = 256 * 1024
"""JSON of spans that is parsed at once, in a few milliseconds."""
_OBJECT_BYTES: Final = 1024
"""Assumed JSON of a span that is held as an object; making it would take the time to be saved."""

_BATCHES: Final = {
    "enqueue_rollout": ("enqueue_many_rollouts",),
    "dequeue_rollout": ("dequeue_many_rollouts",),
    "add_span": ("add_many_spans", "add_encoded_spans"),
    "add_many_spans": ("add_encoded_spans",),
}
"""Calls, and those that do the same for more items or for bytes."""


class BatchingStore(LightningStore):
    """Base of stores that implement the batch calls; it implements the single calls.

    A subclass that overrides a single call alone is asked for each item of a batch: servers and
    runners make batch calls, which would pass it by.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _ask_for_each_item(cls)

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
        enqueue = _primitive(type(self), "enqueue_many_rollouts")
        return (await enqueue(self, [request]))[0]

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]: ...

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        claim = _primitive(type(self), "dequeue_many_rollouts")
        claimed = await claim(self, limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]: ...

    def encode(self, span: Span) -> EncodedSpan:
        """Encode a span that was passed in; the result shares no mutable state with it."""
        return encode_span(span)

    async def add_span(self, span: Span) -> Span | None:
        add = _primitive(type(self), "add_encoded_spans")
        return span if await add(self, [self.encode(span)]) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        encoded = [self.encode(span) for span in spans]
        stored = await _primitive(type(self), "add_encoded_spans")(self, encoded)
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
        return evolve(page, {"items": await _decoded(page.items)})  # pyright: ignore[reportReturnType]

    @abstractmethod
    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        **filters: Any,
    ) -> PaginatedResult[EncodedSpan]: ...


def _ask_for_each_item(cls: type[BatchingStore]) -> None:
    """Let batch calls make the calls that a class overrides, unless it overrides both."""
    for single, batches in _BATCHES.items():
        for batch in batches:
            if single in vars(cls) and batch not in vars(cls):
                setattr(cls, batch, _one_by_one(getattr(LightningStore, batch)))


def _one_by_one(default: Callable[..., Any]) -> Callable[..., Any]:
    """Return the contract's default of a batch call, which makes a single call per item."""

    @functools.wraps(default)
    async def batch(self: BatchingStore, *args: Any, **kwargs: Any) -> Any:
        return await default(self, *args, **kwargs)

    vars(batch)["one_by_one"] = True
    return batch


@functools.cache
def _primitive(cls: type[BatchingStore], name: str) -> Callable[..., Any]:
    """Return the batch call on which calls of one item rest: none that makes such calls itself."""
    found = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    while any(hasattr(method, "one_by_one") for method in found):
        del found[0]
    return found[0]


async def _decoded(spans: Sequence[EncodedSpan]) -> Sequence[Span]:
    """Decode spans as :func:`agl_core.store.decode_spans` does, without holding the event loop."""
    decoded: list[Span] = []
    pauses = Pauses()
    begun = size = 0
    for at, span in enumerate(spans, 1):
        size += _OBJECT_BYTES if span.parts is not None else len(span.payload)
        if size > _DECODED_BYTES:
            decoded += decode_spans(spans[begun:at])
            begun, size = at, 0
            await pauses.take()
    return [*decoded, *decode_spans(spans[begun:])] if decoded else decode_spans(spans)
