"""The tree of a rollout and its forks: rollouts that repeat its first calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agl_core.store import each_item

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Rollout

__all__ = ["ForkTree", "read_forks", "render_forks"]


@dataclass(slots=True)
class ForkTree:
    """A rollout with its forks.

    Attributes:
        rollout: The rollout.
        reward: Its final reward; None if it has none.
        forks: Its forks, by turn, then in the order in which they were added.
    """

    rollout: Rollout
    reward: float | None = None
    forks: list[ForkTree] = field(default_factory=list["ForkTree"])

    @property
    def turn(self) -> int | None:
        """Number of calls that it repeats of its parent; None if it is not a fork."""
        replay = self.rollout.config.replay
        return None if replay is None or replay.then != "live" else replay.until

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as JSON values."""
        return {
            "rollout_id": self.rollout.rollout_id,
            "status": self.rollout.status,
            "turn": self.turn,
            "reward": self.reward,
            "forks": [one.as_dict() for one in self.forks],
        }


def parent_of(rollout: Rollout) -> str | None:
    """Return the id of the rollout that a rollout is a fork of; None if it is not a fork."""
    replay = rollout.config.replay
    return replay.rollout_id if replay is not None and replay.then == "live" else None


async def read_forks(store: LightningStore, rollout: Rollout) -> ForkTree:
    """Return the tree that a rollout belongs to, from the first recorded rollout on.

    Reads all rollouts of the store, and the spans of those in the tree.

    Args:
        store: The store.
        rollout: A rollout of the tree.
    """
    known = {
        one.rollout_id: ForkTree(one) async for one in each_item(store.query_rollouts, "rollout_id")
    }
    for tree in known.values():
        above = known.get(parent_of(tree.rollout) or "")
        if above is not None:
            above.forks.append(tree)
    root = known[rollout.rollout_id]
    while (above := known.get(parent_of(root.rollout) or "")) is not None:
        root = above
    for tree, _ in _walk(root):
        tree.forks.sort(key=lambda one: one.turn or 0)
        tree.reward = await _reward(store, tree.rollout.rollout_id)
    return root


def render_forks(root: ForkTree, *, unicode: bool = True) -> Iterator[str]:
    """Yield the lines of a tree of forks."""
    fork, corner, bar = ("├─ ", "└─ ", "│  ") if unicode else ("|- ", "`- ", "|  ")
    for tree, above in _walk(root):
        # `above` says for each level whether its row is the last of its parent.
        guides = "".join("   " if last else bar for last in above[1:-1])
        own = "" if len(above) < 2 else corner if above[-1] else fork
        turn = "" if tree.turn is None else f"after call {tree.turn}, "
        reward = "" if tree.reward is None else f", reward {tree.reward:.4g}"
        yield f"{guides}{own}{tree.rollout.rollout_id}: {turn}{tree.rollout.status}{reward}"


def _walk(root: ForkTree) -> Iterator[tuple[ForkTree, Sequence[bool]]]:
    stack: list[tuple[ForkTree, list[bool]]] = [(root, [True])]
    while stack:
        tree, above = stack.pop()
        yield tree, above
        last = len(tree.forks) - 1
        stack += [(one, [*above, i == last]) for i, one in enumerate(tree.forks)][::-1]


async def _reward(store: LightningStore, rollout_id: str) -> float | None:
    from agl_core.adapter import read_reward
    from agl_core.emitter import by_authority
    from agl_core.errors import SpansEvictedError

    try:
        spans = await store.query_spans(rollout_id, "latest")
    except SpansEvictedError:
        return None
    return next((r for span in by_authority(spans) if (r := read_reward(span)) is not None), None)
