"""A store that is slow or down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agl_core.errors import StoreUnavailableError
from agl_core.store import EncodedSpan, InMemoryLightningStore

__all__ = ["TroubledStore"]


class TroubledStore(InMemoryLightningStore):
    """A store whose span calls can be slow, or fail.

    Attributes:
        delay: Seconds added to each call that adds spans or draws their ids.
        gone: Whether those calls fail.
        batches: Number of calls that added spans.
    """

    delay = 0.0
    gone = False
    batches = 0

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        await self._trouble()
        self.batches += 1
        return await super().add_encoded_spans(spans)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        await self._trouble()
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def _trouble(self) -> None:
        await asyncio.sleep(self.delay)
        if self.gone:
            raise StoreUnavailableError("the server does not answer")
