"""What a run costs: the calls and the tokens of its rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel

from agl_store_http.server.views.summaries import RolloutSummary, Summaries

__all__ = ["BatchCost", "RunCost", "add_up"]

_MOST_READ: Final = 1_000
"""Rollouts of a run that are read for its cost: seconds at first, nothing later."""
_PAGE: Final = 250
"""Rollouts whose summaries are computed at a time; between two pages other calls run."""


class BatchCost(BaseModel):
    """Calls and tokens of some rollouts of a batch, of the latest attempt of each."""

    batch: str
    rollouts: int
    """Rollouts that were read: the newest ones that have an attempt."""
    model_calls: int = 0
    """Each counts once, also if both a client and a proxy recorded it."""
    input_tokens: int | None = None
    """None if no call tells it."""
    output_tokens: int | None = None


class RunCost(BaseModel):
    """The cost of each batch of a run. Large runs are read in part, some rollouts of each batch."""

    batches: list[BatchCost]


async def add_up(summaries: Summaries, members: dict[str, list[str]]) -> RunCost:
    """Return the cost of a run.

    Args:
        summaries: The summaries of the run's store.
        members: Ids of rollouts by batch.
    """
    share = _MOST_READ
    if sum(map(len, members.values())) > _MOST_READ:
        share = max(1, _MOST_READ // len(members))
    newest = {batch: ids[-share:] for batch, ids in list(members.items())[-_MOST_READ:]}
    wanted = [one for ids in newest.values() for one in ids]
    found: dict[str, RolloutSummary] = {}
    for at in range(0, len(wanted), _PAGE):
        page = await summaries.of(wanted[at : at + _PAGE])
        found |= {each.rollout_id: each for each in page if each.attempt_id is not None}
    return RunCost(
        batches=[
            _cost(batch, [found[one] for one in ids if one in found])
            for batch, ids in newest.items()
        ]
    )


def _cost(batch: str, read: Sequence[RolloutSummary]) -> BatchCost:
    taken = [one.input_tokens for one in read if one.input_tokens is not None]
    given = [one.output_tokens for one in read if one.output_tokens is not None]
    return BatchCost(
        batch=batch,
        rollouts=len(read),
        model_calls=sum(one.model_calls for one in read),
        input_tokens=sum(taken) if taken else None,
        output_tokens=sum(given) if given else None,
    )
