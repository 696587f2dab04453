"""The numbers of a rollout's reward."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.emitter import by_authority, get_rewards_from_span
from agl_core.types import Span

__all__ = ["named_rewards"]


def named_rewards(spans: Sequence[Span]) -> dict[str, float]:
    """Return the numbers of the reward that counts among the spans of an attempt, by name."""
    for span in by_authority(spans):
        if numbers := get_rewards_from_span(span):
            return {number.name: number.value for number in numbers}
    return {}
