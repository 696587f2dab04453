"""Scores by other scorers, kept in the store beside the rollouts of a run.

A rollout keeps the reward that it got: what a judge says later is a checkpoint of its own,
``scores:<run>/<scorer>``, which agents never receive. Those of a scorer that was interrupted are in
``unfinished-scores:<run>/<scorer>``, so that nobody takes them for scores of the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agl_algorithm_kit.records import check_name, checkpoints_under
from agl_core.algorithm import BatchOutcome
from agl_core.types import Checkpoint

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["check_scorer_name", "keep_scores", "kept_scores", "with_scores"]

_PREFIXES: Final = {True: "scores:", False: "unfinished-scores:"}
_KEY: Final = "scores"


def check_scorer_name(scorer: str) -> None:
    """Check the name of a scorer, before it scores: scores may cost money.

    Raises:
        InvalidArgumentError: It has other characters than letters, digits, ``_``, ``-`` and ``.``.
    """
    check_name("scorer", scorer)


async def keep_scores(
    store: LightningStore,
    run: str,
    scorer: str,
    scores: Mapping[str, float | None],
    *,
    finished: bool = True,
) -> None:
    """Keep the scores of a run's rollouts; those that the scorer gave before are replaced.

    Args:
        store: The store.
        run: Name of the run.
        scorer: Name of the scorer: letters, digits, ``_``, ``-`` and ``.``.
        scores: By rollout id; None for a rollout that could not be scored.
        finished: Whether they are those of the whole run.

    Raises:
        InvalidArgumentError: The scorer's name has other characters.
    """
    check_scorer_name(scorer)
    checkpoint = Checkpoint(state=dict(scores))
    await store.update_resources(f"{_PREFIXES[finished]}{run}/{scorer}", {_KEY: checkpoint})


async def kept_scores(
    store: LightningStore, run: str, *, finished: bool = True
) -> dict[str, dict[str, float | None]]:
    """Return the scores that are kept of a run: by scorer, then by rollout id.

    Args:
        store: The store.
        run: Name of the run.
        finished: Whether to return those of the whole run, or those of interrupted scorers.
    """
    found = await checkpoints_under(store, f"{_PREFIXES[finished]}{run}/", _KEY)
    return {scorer: checkpoint.state for scorer, checkpoint in found.items()}


def with_scores(batch: BatchOutcome, scores: Mapping[str, float | None]) -> BatchOutcome:
    """Return a batch whose rollouts have these scores, by rollout id, in place of their rewards.

    A rollout without a score has no reward. The range of the rewards does not hold for the scores.
    """
    rated = [replace(one, reward=scores.get(one.rollout.rollout_id)) for one in batch]
    return BatchOutcome(rated, batch.resources_id)
