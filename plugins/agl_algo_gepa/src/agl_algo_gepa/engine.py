"""Implementations of the ``gepa`` library's interfaces, which forward to the run.

All of this runs in the engine's thread and reaches the run's event loop through a bridge.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import GEPAState as EngineState
from gepa.gepa_utils import find_dominator_programs
from gepa.proposer.base import CandidateProposal
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionJob, ReflectionProposal
from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance
from gepa.strategies.proposal_sampling import IndependentSampling

from agl_algo_gepa.bridge import Bridge
from agl_algo_gepa.config import GEPAConfig
from agl_algo_gepa.evolution import Evolution
from agl_algo_gepa.measurements import Row
from agl_algo_gepa.reflection import Job

__all__ = ["optimise"]

logger = logging.getLogger(__name__)

_MERGE_OVERLAP = 5  # tasks that both parents of a merge were measured on; the library's default


def optimise(
    config: GEPAConfig,
    evolution: Evolution,
    bridge: Bridge,
    *,
    seed_prompts: Mapping[str, str],
    n_train: int,
    n_val: int,
    seed: int,
) -> None:
    """Search until :meth:`Evolution.end_round` returns True.

    The search is deterministic: equal results of the evolution lead to equal decisions.

    Args:
        config: Options.
        evolution: Runs rollouts and reflections, and decides when to stop.
        bridge: Runs the evolution's coroutines on its event loop.
        seed_prompts: Prompts to start from, by name.
        n_train: Number of training tasks.
        n_val: Number of validation tasks.
        seed: Seed of the engine's random draws.
    """
    sampling = None
    if config.proposals_per_iteration > 1:
        sampling = IndependentSampling(config.proposals_per_iteration)
    optimize(
        # The library iterates over sets of names when it merges candidates; see _Name.
        seed_candidate={_Name(name): text for name, text in seed_prompts.items()},
        trainset=[Row("train", index) for index in range(n_train)],
        valset=[Row("val", index) for index in range(n_val)],
        adapter=_Adapter(evolution, bridge),  # pyright: ignore[reportArgumentType]
        reflection_strategy=_Reflection(evolution, bridge),
        candidate_selection_strategy=config.candidate_selection_strategy,
        skip_perfect_score=True,
        perfect_score=_Target(evolution),  # pyright: ignore[reportArgumentType]
        reflection_minibatch_size=min(config.reflection_minibatch_size, n_train),
        module_selector=config.module_selector,
        use_merge=config.use_merge,
        max_merge_invocations=config.max_merge_invocations,
        merge_val_overlap_floor=min(_MERGE_OVERLAP, n_val),
        stop_callbacks=_Rounds(evolution, bridge),
        callbacks=[_Merges(evolution, bridge)],  # pyright: ignore[reportArgumentType]
        # Version 0.1.4 of the library raises when it merges descendants of a candidate that scores
        # 0. Failures of our own code still end the search, through the bridge.
        raise_on_exception=not config.use_merge,
        acceptance_criterion=_Verdicts(config.acceptance_criterion, evolution, bridge),
        sampling_strategy=sampling,
        logger=_Log(),
        track_best_outputs=False,
        seed=Random(seed).getrandbits(32),
    )


class _Name(str):
    """A prompt's name whose hash, and thus its order in a set, is the same in every process."""

    __slots__ = ()

    def __hash__(self) -> int:
        return int.from_bytes(self.encode(), "big") % (2**61 - 1)


class _Target:
    """The reward that cannot be exceeded, to which the library compares rewards.

    It may be learned while the search goes on.
    """

    def __init__(self, evolution: Evolution) -> None:
        self._evolution = evolution

    def __le__(self, reward: float) -> bool:
        target = self._evolution.target
        return target is not None and reward >= target


class _Adapter:
    """Runs candidates on rows of the datasets; a trajectory is represented by its row."""

    propose_new_texts = None

    def __init__(self, evolution: Evolution, bridge: Bridge) -> None:
        self._evolution = evolution
        self._bridge = bridge

    def evaluate(
        self, batch: list[Row], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Row, None]:
        (found,) = self.batch_evaluate([(candidate, batch)])
        return found

    def batch_evaluate(
        self, items: list[tuple[dict[str, str], list[Row]]]
    ) -> list[EvaluationBatch[Row, None]]:
        candidates = [(_plain(candidate), rows) for candidate, rows in items]
        scores = self._bridge.call(self._evolution.evaluate, candidates)
        return [
            EvaluationBatch(outputs=[None] * len(rows), scores=of_rows, trajectories=list(rows))
            for (_, rows), of_rows in zip(items, scores, strict=True)
        ]

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Row, None],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the rows; their rollouts are loaded only if the model is called."""
        rows = [{"row": row} for row in eval_batch.trajectories or ()]
        return dict.fromkeys(components_to_update, rows)


class _Reflection:
    """Proposes new texts; the candidates of an iteration are made concurrently."""

    def __init__(self, evolution: Evolution, bridge: Bridge) -> None:
        self._evolution = evolution
        self._bridge = bridge

    def reflect(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> tuple[ReflectionProposal, _Reflection]:
        (found,) = self.reflect_many([(candidate, reflective_dataset, components_to_update)])
        return found

    def reflect_many(
        self, jobs: list[ReflectionJob]
    ) -> list[tuple[ReflectionProposal, _Reflection]]:
        plain_jobs = [
            Job(
                _plain(candidate),
                [str(name) for name in names],
                [record["row"] for record in dataset[names[0]]],
            )
            for candidate, dataset, names in jobs
        ]
        made = self._bridge.call(self._evolution.reflect, plain_jobs) if plain_jobs else []
        return [
            (ReflectionProposal({_Name(name): text for name, text in texts.items()}), self)
            for texts in made
        ]


class _Verdicts:
    """Accepts or rejects a candidate by its minibatch, and reports rejections."""

    def __init__(self, criterion: str, evolution: Evolution, bridge: Bridge) -> None:
        self._strict = criterion == "strict_improvement"
        self._criterion = (
            StrictImprovementAcceptance() if self._strict else ImprovementOrEqualAcceptance()
        )
        self._evolution = evolution
        self._bridge = bridge

    def should_accept(self, proposal: CandidateProposal[Any], state: EngineState) -> bool:
        self._recount(proposal, state)
        accepted = self._criterion.should_accept(proposal, state)
        if not accepted:
            before, after = proposal.subsample_scores_before, proposal.subsample_scores_after
            wanted = "more than" if self._strict else "at least"
            reason = (
                f"it gets {sum(after or ()):g} on {len(after or ())} training tasks, not {wanted} "
                f"its parent's {sum(before or ()):g}"
            )
            self._bridge.call(self._evolution.reject, _plain(proposal.candidate), reason)
        return accepted

    def _recount(self, proposal: CandidateProposal[Any], state: EngineState) -> None:
        """Give both sides of the comparison the same scale; see :func:`_restate`."""
        if proposal.tag == "merge" or len(proposal.parent_program_ids) != 1:
            return
        rows = [Row("train", index) for index in proposal.subsample_indices or ()]
        parent = state.program_candidates[proposal.parent_program_ids[0]]
        recount = self._evolution.recount
        proposal.subsample_scores_before = self._bridge.call(recount, _plain(parent), rows)
        proposal.subsample_scores_after = self._bridge.call(
            recount, _plain(proposal.candidate), rows
        )


class _Merges:
    """Reports the parents of a merged candidate, and the rejection of a merge."""

    def __init__(self, evolution: Evolution, bridge: Bridge) -> None:
        self._evolution = evolution
        self._bridge = bridge
        self._merged: dict[str, str] = {}

    def on_merge_attempted(self, event: Any) -> None:
        self._merged = _plain(event["merged_candidate"])
        self._bridge.call(self._evolution.record_parents, self._merged, event["parent_ids"])

    def on_merge_rejected(self, event: Any) -> None:
        self._bridge.call(self._evolution.reject, self._merged, event["reason"])

    def on_error(self, event: Any) -> None:
        logger.warning("Iteration %d failed: %s", event["iteration"], event["exception"])


class _Rounds:
    """Stop condition: the engine calls it before each iteration, which ends the previous one."""

    def __init__(self, evolution: Evolution, bridge: Bridge) -> None:
        self._evolution = evolution
        self._bridge = bridge

    def __call__(self, gepa_state: EngineState) -> bool:
        self._restate(gepa_state)
        pool = [_plain(candidate) for candidate in gepa_state.program_candidates]
        scores = gepa_state.per_program_tracked_scores
        front = find_dominator_programs(gepa_state.get_pareto_front_mapping(), scores)
        return self._bridge.call(self._evolution.end_round, pool, front)

    def _restate(self, state: EngineState) -> None:
        """Tell the engine what failures count now: rewards below the earlier ones were seen."""
        scores = state.prog_candidate_val_subscores
        for candidate, known in zip(state.program_candidates, scores, strict=True):
            rows = [Row("val", index) for index in known]
            counted = self._bridge.call(self._evolution.recount, _plain(candidate), rows)
            known.update(zip(known, counted, strict=True))
        for row in state.pareto_front_valset:
            best = max(known[row] for known in scores if row in known)
            state.pareto_front_valset[row] = best
            state.program_at_pareto_front_valset[row] = {
                index for index, known in enumerate(scores) if known.get(row) == best
            }


class _Log:
    def log(self, message: str) -> None:
        logger.debug("%s", message)


def _plain(candidate: Mapping[str, str]) -> dict[str, str]:
    return {str(name): text for name, text in candidate.items()}
