"""A store that is slow, down, or fails for some rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from agl_core.errors import StoreUnavailableError
from agl_core.store import EncodedSpan
from agl_core.types import Rollout
from agl_store_memory import InMemoryLightningStore

__all__ = ["TroubledStore"]


class TroubledStore(InMemoryLightningStore):
    """A store whose span calls can be slow, or fail.

    Attributes:
        delay: Seconds added to each call that adds spans or draws their ids.
        gone: Whether those calls fail.
        silent: Whether every call fails while the store is gone, so that it is down as a whole.
        failing: Ids of rollouts for whose spans those calls fail, while the store works.
        batches: Number of calls that added spans.
    """

    delay = 0.0
    gone = False
    silent = False
    failing: Iterable[str] = ()
    batches = 0

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        await self._trouble(span.rollout_id for span in spans)
        self.batches += 1
        return await super().add_encoded_spans(spans)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        await self._trouble(rollout_id for rollout_id, _ in rollout_attempt_ids)
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        if self.gone and self.silent:
            raise StoreUnavailableError("the server does not answer")
        return await super().get_rollout_by_id(rollout_id)

    async def _trouble(self, rollout_ids: Iterable[str]) -> None:
        await asyncio.sleep(self.delay)
        if self.gone:
            raise StoreUnavailableError("the server does not answer")
        if not set(self.failing).isdisjoint(rollout_ids):
            raise RuntimeError("a row of this rollout is corrupt")
