"""Reads what a store knows before a promotion: rewards of the champion, and used tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agl_algorithm_kit import checkpoints_under
from agl_core.emitter import find_final_reward
from agl_core.store import each_item
from agl_core.types import task_digest
from agl_promote.promotion import CHECKPOINT, PREFIX
from agl_train import Spending

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_promote.plan import Terms

__all__ = ["Known", "earlier_uses", "used_tasks", "what_is_known"]

_LOOKED_AT: Final = 5000  # newest rollouts
_MOST_KNOWN: Final = 300
"""Rewards that fix the spread well; older ones may be of another task list."""


class Known(NamedTuple):
    """Findings of evaluations of the champion.

    Attributes:
        rewards: Rewards of its newest rollouts, at most 300.
        cost: Mean cost of one of them; None without a price or a rollout.
    """

    rewards: list[float]
    cost: float | None


async def what_is_known(
    store: LightningStore, plan: Terms, price: tuple[float, float] | None = None
) -> Known:
    """Read what evaluations of the champion found.

    Args:
        store: The store.
        plan: A plan with this champion.
        price: Cost of a million input tokens and of a million output tokens.
    """
    page = await store.query_rollouts(
        mode_in=["val", "test"], sort_by="start_time", sort_order="desc", limit=_LOOKED_AT
    )
    own = [one for one in page if one.resources_id == plan.champion and one.status == "succeeded"]
    low, high = plan.reward_range
    spending = Spending(None, None, price)
    rewards: list[float] = []
    for rollout in own[:_MOST_KNOWN]:
        spans = (await store.query_spans(rollout.rollout_id, "latest")).items
        reward = find_final_reward(spans)
        if reward is not None and low <= reward <= high:
            rewards.append(reward)
            spending.count(spans)
    known = spending.cost if rewards else None
    return Known(rewards, None if known is None else known / len(rewards))


async def used_tasks(store: LightningStore, *resources_ids: str) -> set[str]:
    """Return the digests of the tasks that the searches of these snapshots used.

    A snapshot ``search/v12`` was made by the run ``search``, and all of that run's rollouts count.
    """
    runs = {one.partition("/")[0] for one in resources_ids if "/" in one}
    found: set[str] = set()
    async for rollout in each_item(store.query_rollouts, "rollout_id", mode_in=["train", "val"]):
        labels = rollout.metadata or {}
        if labels.get("run") in runs or rollout.resources_id in resources_ids:
            found.add(task_digest(rollout.input))
    return found


async def earlier_uses(store: LightningStore, digests: Iterable[str]) -> dict[str, int]:
    """Return how many of these tasks each promotion of the store has in its plan, by its label.

    Each promotion on the same tasks has an error of alpha of its own, so of twenty with an alpha of
    5 %, one promotes falsely.
    """
    wanted = set(digests)
    found: dict[str, int] = {}
    for label, checkpoint in (await checkpoints_under(store, PREFIX, CHECKPOINT)).items():
        plan: dict[str, Any] = checkpoint.state["plan"]
        if shared := len(wanted.intersection(plan.get("tasks", []))):
            found[label] = shared
    return found
