"""The turns of a row of tokens."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from agl_credit.paths import Turn

__all__ = ["row_turns"]


def row_turns(
    token_ids: Sequence[int],
    responses: Sequence[tuple[int, int]],
    logprobs: Sequence[float],
    *,
    agent: str,
    rewards: Sequence[float | None],
) -> list[Turn]:
    """Return a turn for each response in a row. Its state is a digest of all tokens before it.

    Args:
        token_ids: All T tokens of the row.
        responses: Positions ``(start, end)`` of the R responses, ascending; ``end`` exclusive.
        logprobs: ``[T]``, read where the model sampled; 0 if they were not captured.
        agent: Name of the agent that made the calls.
        rewards: ``[R]``, the reward of each call; None where it has none.
    """
    state = hashlib.blake2b(digest_size=16)
    turns: list[Turn] = []
    read = 0
    for (start, end), reward in zip(responses, rewards, strict=True):
        state.update(array("q", token_ids[read:start]).tobytes())
        read = start
        turns.append(
            Turn(
                state=state.digest(),
                action=tuple(token_ids[start:end]),
                agent=agent,
                reward=reward or 0.0,
                surprisal=-sum(logprobs[start:end]),
                tokens=end - start,
            )
        )
    return turns
