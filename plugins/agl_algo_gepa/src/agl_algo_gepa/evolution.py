"""The requests of the engine in a GEPA run, all served on the run's event loop.

The engine of the ``gepa`` library decides what to try. Its decisions are a function of the seed and
of the results returned here. To resume a run, the engine starts again and gets the earlier results
from the journal: no rollout and no call is repeated, and the decisions are the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import anyio

from agl_algo_gepa.measurements import Measurements, Row
from agl_algo_gepa.recorder import Recorder
from agl_algo_gepa.reflection import Job, Reflection
from agl_algo_gepa.state import Candidate
from agl_prompt_search import Budget

__all__ = ["Evolution"]

logger = logging.getLogger(__name__)

_MAX_SILENT_ROUNDS = 3  # rounds in a row without an answer of the model, after which it stops


class Evolution:
    """Evaluates and proposes candidates for the engine, and decides when to stop.

    For one event loop and one call at a time.

    Args:
        recorder: Keeps the candidates.
        measurements: Runs candidates on tasks.
        reflection: Proposes new texts.
        n_val: Number of validation tasks.
        budget: Limits.
        iteration_rollouts: Largest number of rollouts of one iteration.
        iteration_calls: Largest number of calls of one iteration.
        max_rounds: Limit of iterations.
        perfect_score: Reward that cannot be exceeded; ``auto``: that of the rewards' scale; None
            if there is none.
    """

    def __init__(
        self,
        recorder: Recorder,
        measurements: Measurements,
        reflection: Reflection,
        *,
        n_val: int,
        budget: Budget,
        iteration_rollouts: int,
        iteration_calls: int,
        max_rounds: int,
        perfect_score: float | Literal["auto"] | None,
    ) -> None:
        self._recorder = recorder
        self._state = recorder.state
        self._reporter = recorder.reporter
        self._measurements = measurements
        self._reflection = reflection
        self._model = reflection.model
        self._all_val = range(n_val)
        self._budget = budget
        self._iteration = {"rollouts": iteration_rollouts, "calls": iteration_calls}
        self._max_rounds = max_rounds
        self._perfect_score = perfect_score
        self._contradicted = False
        self._pool: Sequence[str] = []
        self._answered = self._failed = self._silent_rounds = 0

    @property
    def target(self) -> float | None:
        """The reward that cannot be exceeded, as far as is known now."""
        scale, perfect = self._state.scale, self._perfect_score
        if isinstance(perfect, str):
            return scale.target
        if perfect is not None and scale.highest > perfect:
            if not self._contradicted:
                self._contradicted = True
                logger.warning(
                    "There are rewards of %g, above perfect_score = %g, which is ignored",
                    scale.highest,
                    perfect,
                )
            return None
        return perfect

    async def recount(self, prompts: Mapping[str, str], rows: Sequence[Row]) -> list[float]:
        """Return known rewards of a candidate on the present scale, on which failures may count
        less than when they were measured.
        """
        return self._measurements.counted(self._recorder.known(prompts).version, rows)

    async def may_begin(self) -> bool:
        """Return whether the budget allows the seed to be measured; if not, the search stops."""
        stopped = self._budget.exceeded_by(self._state.spent, rollouts=len(self._all_val))
        self._state.stopped = stopped
        if stopped:
            self._reporter.stopped(stopped)
            await self._recorder.save()
        return not stopped

    async def evaluate(
        self, items: Sequence[tuple[Mapping[str, str], Sequence[Row]]]
    ) -> list[list[float]]:
        """Return the rewards of candidates, each on its rows; see :class:`Measurements`."""
        return await self._measurements.rewards(items)

    async def reflect(self, jobs: Sequence[Job]) -> list[dict[str, str]]:
        """Propose new candidates concurrently.

        Returns:
            The new texts of each job, by prompt; an empty dict if it is rejected, unless it
            repeats a candidate that gets another chance.
        """
        made: list[tuple[Candidate, Job]] = []
        for job in jobs:
            candidate = self._recorder.new_candidate(job.prompts)
            candidate.parent = self._recorder.known(job.prompts).version
            made.append((candidate, job))
            await self._reflection.load(candidate, job)
        async with anyio.create_task_group() as group:
            for candidate, job in made:
                group.start_soon(self._reflection.propose, candidate, job)
        for candidate, _ in made:
            self._reject_repetition(candidate)
            self._recorder.tell(self._reporter.proposed, candidate)
        await self._recorder.save()
        return [
            {name: one.prompts[name] for name in job.components if not one.rejected or one.repeats}
            for one, job in made
        ]

    def _reject_repetition(self, candidate: Candidate) -> None:
        first = self._recorder.known(candidate.prompts)
        if candidate.rejected or first is candidate:
            return
        candidate.rejected = f"the edit is the same as {first.version}"
        candidate.repeats = first.outclassed
        if first.outclassed:
            # It may do better on another minibatch; its known rewards stay.
            candidate.rejected += ", which gets another chance"
            first.rejected, first.outclassed = "", False

    async def reject(self, prompts: Mapping[str, str], reason: str) -> None:
        """Record that a candidate is not measured on the validation tasks."""
        candidate = self._recorder.known(prompts)
        if candidate.missing(self._all_val):
            candidate.rejected, candidate.outclassed = reason, True
            self._recorder.tell(self._reporter.proposed, candidate)

    async def record_parents(self, prompts: Mapping[str, str], parents: Sequence[int]) -> None:
        """Record the parents of a merged candidate; they are indices of the engine's pool."""
        candidate = self._recorder.known(prompts)
        if candidate.parent is None:
            candidate.parent = "+".join(self._pool[index] for index in parents)

    async def end_round(self, pool: Sequence[Mapping[str, str]], front: Collection[int]) -> bool:
        """Record that the seed was measured, or that an iteration ended.

        Args:
            pool: Prompts of the engine's candidates, in its order.
            front: Indices of the candidates on the Pareto front.

        Returns:
            Whether to stop.
        """
        state = self._state
        self._pool = [self._recorder.known(prompts).version for prompts in pool]
        kept = sorted((state.candidate(version) for version in self._pool), key=_rank)
        state.front = [one.version for one in kept if self._pool.index(one.version) in front]
        state.best = kept[0].version
        state.rounds += bool(state.curve)
        state.add_curve_point()
        await self._recorder.save()
        tell = self._reporter.round_ended if state.rounds else self._reporter.started
        self._recorder.tell(tell, state)
        if silence := self._silence():
            state.stop_unanswered(silence)
        else:
            state.stopped = self._reason_to_stop()
        if state.stopped:
            self._reporter.stopped(state.stopped)
            await self._recorder.save()
        return bool(state.stopped) or state.rounds == self._max_rounds

    def _silence(self) -> str:
        """Return that the model gives no answer, and why; empty if it does."""
        state, model = self._state, self._model
        if model.answers > self._answered:
            self._silent_rounds = 0
        elif model.failures > self._failed:
            self._silent_rounds += 1
        self._answered, self._failed = model.answers, model.failures
        if self._silent_rounds == _MAX_SILENT_ROUNDS or model.refuses:
            why = next(one.rejected for one in reversed(state.history) if one.rejected)
            rounds = f"{self._silent_rounds} rounds" if self._silent_rounds > 1 else "a round"
            return f"the model gave no answer in {rounds}: {why}"
        return ""

    def _reason_to_stop(self) -> str:
        state = self._state
        if state.is_solved(self._all_val, self.target):
            return f"{state.best} solves every validation task"
        return self._budget.exceeded_by(state.spent, **self._iteration)


def _rank(candidate: Candidate) -> tuple[float, int, int]:
    """Return the sort key: best first; of equals, that with fewer failures, then the older one."""
    mean = candidate.mean()
    return math.inf if mean is None else -mean, len(candidate.failed), candidate.number
