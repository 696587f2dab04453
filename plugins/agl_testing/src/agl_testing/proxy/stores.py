"""A store in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agl_core.errors import StoreUnavailableError
from agl_core.store import EncodedSpan, InMemoryLightningStore

__all__ = ["TroubledStore"]


class TroubledStore(InMemoryLightningStore):
    """A store that can be slow to take spans, or gone.

    Attributes:
        delay: Seconds that taking spans, and drawing their ids, takes longer.
        gone: Whether it does not answer those calls.
        batches: How often spans were brought to it.
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
            raise StoreUnavailableError("nobody is there")
