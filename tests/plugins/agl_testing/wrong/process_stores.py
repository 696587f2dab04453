"""Stores whose data several processes share, and that are wrong in one way each."""

from __future__ import annotations

import asyncio
from functools import partial

from agl_store_memory import InMemoryLightningStore

CONNECTION = """
    def connection(self, store):
        return store.connection()
"""
OPEN = []
"""The stores of this process; a callable that is pickled holds the place of one."""


def open_again(place):
    first = OPEN[place]
    again = type(first)()
    again._backend = first._backend
    return again


class Base(InMemoryLightningStore):
    """A store that is opened twice, in this process."""

    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(scan_debounce_seconds=0)

    def connection(self):
        OPEN.append(self)
        return partial(open_again, len(OPEN) - 1)


class CountsIdsByItself(Base):
    CAUGHT_BY = "test_two_stores_draw_the_ids_of_one_counter"

    def __init__(self) -> None:
        super().__init__()
        self.last = 0

    async def get_next_span_sequence_id(self, rollout_id, attempt_id):
        (drawn,) = await self.get_many_span_sequence_ids([(rollout_id, attempt_id)])
        return drawn

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        first, self.last = self.last + 1, self.last + len(rollout_attempt_ids)
        return list(range(first, self.last + 1))


class RemembersTheLatestResources(Base):
    CAUGHT_BY = "test_resources_of_one_store_are_the_latest_of_another"

    known = None

    async def get_latest_resources(self):
        if self.known is None:
            self.known = await super().get_latest_resources()
        return self.known


class SwapsInTwoSteps(Base):
    CAUGHT_BY = "test_of_swaps_in_two_stores_one_succeeds"

    async def swap_resources(self, resources_id, resources, *, version):
        known = await self.get_resources_by_id(resources_id)
        if version != (known.version if known else 0):
            return None
        await asyncio.sleep(0)
        return await self.update_resources(resources_id, resources)
