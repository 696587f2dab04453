"""Beam search: rounds of proposals, their concurrent evaluation, and a beam of the best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import Any

import anyio

from agl_adapters import TraceToMessages
from agl_algo_apo.config import APOConfig
from agl_algo_apo.proposals import Proposer
from agl_algo_apo.ranking import rank
from agl_algo_apo.state import APOState, Candidate
from agl_algorithm_kit import run_batch
from agl_core.algorithm import BatchOutcome, Run, batch_iter_over_dataset
from agl_core.store import LightningStore
from agl_core.types import Dataset, RolloutMode
from agl_prompt_search import (
    Budget,
    ConversationCheck,
    Reporter,
    Snapshots,
    Subject,
    describe,
)

__all__ = ["BeamSearch"]


class BeamSearch:
    """Runs a search from a state to its end.

    Random draws depend on the state's seed and their purpose only, and the state is saved after
    every result. A killed search therefore resumes from its state and ends like an uninterrupted
    one. Its rollouts in flight belong to the run, which does not enqueue them again.

    Args:
        config: Sizes of the search.
        state: State to start from; changed in place.
        run: Saves the state; a run without a name saves nothing.
        store: Store of the rollouts.
        adapter: Turns spans into conversations.
        train: Training tasks, on which prompts are criticised.
        val: Validation tasks, on which prompts are scored.
        snapshots: Resources of the agent, by version.
        prompt_name: Name of the prompt among them.
        proposer: Makes candidates.
        budget: Limits.
        reporter: Receives every step.
    """

    def __init__(
        self,
        config: APOConfig,
        state: APOState,
        *,
        run: Run,
        store: LightningStore,
        adapter: TraceToMessages,
        train: Dataset[Any],
        val: Dataset[Any],
        snapshots: Snapshots,
        prompt_name: str,
        proposer: Proposer,
        budget: Budget,
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._state = state
        self._run = run
        self._saving = anyio.Lock()
        self._store = store
        self._adapter = adapter
        self._conversations = ConversationCheck("APO", adapter)
        self._train = train
        self._val = val
        self._snapshots = snapshots
        self._prompt_name = prompt_name
        self._proposer = proposer
        self._budget = budget
        self._reporter = reporter

    async def run(self) -> None:
        """Search until the last round ends, the budget is spent, or the models do not answer."""
        await self._search()
        if self._state.stopped:
            await self._save()

    async def _search(self) -> None:
        state, config = self._state, self._config
        if not state.curve:
            seed = state.candidate("v0")
            state.beam = [seed.version]
            if not await self._propose_first():
                return
            if config.run_initial_validation:
                rows = range(len(self._val))
                limit = self._budget.exceeded_by(state.spent, rollouts=len(rows))
                # If there is a first proposal, the budget allowed all of the first round.
                if not state.proposed_in(1) and self._stop_if(limit):
                    return
                await self._measure([seed], rows, "start")
            state.add_curve_point()
            await self._save()
            self._reporter.started(state)
        while state.rounds < config.beam_rounds:
            if state.is_solved(range(len(self._val)), state.scale.target):
                self._stop_if(f"{state.best} solves every validation task")
                return
            number = state.rounds + 1
            begun = bool(state.proposed_in(number))
            most = self._most_of(number)
            if not begun and self._stop_if(self._budget.exceeded_by(state.spent, **most)):
                return
            model = self._proposer.model
            answers, failures = model.answers, model.failures
            await self._propose(number)
            in_vain = all(one.unusable for one in state.proposed_in(number))
            if in_vain and model.failures > failures and model.answers == answers:
                self._stop_without_answers(number)
                return
            await self._select(number)
            state.rounds = number
            state.add_curve_point()
            await self._save()
            self._reporter.round_ended(state)

    def _stop_if(self, reason: str) -> bool:
        if reason:
            self._state.stopped = reason
            self._reporter.stopped(reason)
        return bool(reason)

    def _stop_without_answers(self, number: int) -> None:
        proposed = self._state.proposed_in(number)
        reason = next((one.rejected for one in proposed if one.rejected), "no proposal was made")
        self._state.stop_unanswered(f"the models gave no answer in round {number}: {reason}")
        self._reporter.stopped(self._state.stopped)

    # -- proposals -------------------------------------------------------------------------------

    async def _propose_first(self) -> bool:
        """Make the first proposal before all else; return whether the models can be called.

        A wrong key or model name thus costs a few rollouts, not those of a whole round.
        """
        most = self._most_of(1)
        most["rollouts"] += len(self._val)
        if not self._budget.exceeded_by(self._state.spent, **most):
            await self._save()
            await self._propose(1, slots=1)
            if self._proposer.model.refuses:
                self._stop_without_answers(1)
                return False
        return True

    async def _propose(self, number: int, slots: int | None = None) -> None:
        """Criticise and edit each parent several times, concurrently.

        Args:
            number: Number of the round.
            slots: Number of proposals; those that were made already are not made again.
        """
        state, config = self._state, self._config
        parents = self._parents(number)
        slots = slots or config.proposals_per_round
        known = {candidate.version for candidate in state.history}
        if self._budget.calls is not None:
            # Decided in advance, so that the order of concurrent calls does not matter.
            left = self._budget.calls - state.spent.calls
            slots = min(slots, len(state.proposed_in(number)) + left // config.calls_per_proposal)
        async with anyio.create_task_group() as group:
            for slot in range(slots):
                index = (number - 1) * config.proposals_per_round + slot
                version = f"v{index + 1}"
                if version not in known:
                    parent = parents[slot // config.branch_factor]
                    candidate = Candidate(version=version, parent=parent.version, round=number)
                    group.start_soon(self._propose_one, candidate, parent, index)
        self._reject_repetitions(number)

    def _parents(self, number: int) -> list[Candidate]:
        """Return the prompts that a round edits; a short beam is repeated."""
        beam, width = self._state.beam, self._config.beam_width
        if len(beam) < width:
            chosen = [beam[index % len(beam)] for index in range(width)]
        else:
            chosen = self._random("parents", number).sample(beam, width)
        return [self._state.candidate(version) for version in chosen]

    async def _propose_one(self, candidate: Candidate, parent: Candidate, index: int) -> None:
        outcomes = await self._experiment(parent, candidate.version, index)
        await self._proposer.propose(
            candidate,
            parent.prompt,
            [describe(outcome, self._adapter) for outcome in outcomes],
            Subject(
                candidate.version,
                parent.version,
                self._prompt_name,
                [outcome.rollout.rollout_id for outcome in outcomes],
            ),
            self._random("proposal", index),
        )
        self._state.add(candidate)
        await self._save()
        self._reporter.proposed(candidate)

    async def _experiment(self, parent: Candidate, child: str, index: int) -> BatchOutcome:
        """Run a prompt on the training tasks from which its child is proposed."""
        batches = batch_iter_over_dataset(
            self._train, self._config.gradient_batch_size, seed=self._seed("train")
        )
        (tasks,) = islice(batches, index, index + 1)
        return await self._batch(
            parent, tasks, "train", f"{child}-gradient", self._config.proposals_per_round
        )

    def _reject_repetitions(self, number: int) -> None:
        first: dict[str, str] = {}
        for candidate in self._state.history:
            if candidate.rejected:
                continue
            known = first.setdefault(candidate.prompt, candidate.version)
            if candidate.round == number and known != candidate.version:
                candidate.rejected = f"the edit is the same as {known}"

    # -- evaluation ------------------------------------------------------------------------------

    async def _select(self, number: int) -> None:
        """Score beam and proposals on the same rows, keep the best, measure the leader on all."""
        state = self._state
        rows = self._rows(number)
        # States of older versions may hold this round's beam already, or a prompt twice.
        known = map(state.candidate, dict.fromkeys(state.beam))
        beam = [candidate for candidate in known if candidate.round < number]
        fresh = [one for one in state.proposed_in(number) if not one.rejected]
        await self._measure([*beam, *fresh], rows, f"round-{number}")
        for candidate in fresh:
            if candidate.mean(rows) is None:
                candidate.rejected = "none of its rollouts succeeded"
        measured = [one for one in [*beam, *fresh] if one.mean(rows) is not None]
        if not measured:
            return  # no prompt was measured, so the beam stays
        ranked = rank(measured, rows)
        leader = ranked[0]
        await self._measure([leader], range(len(self._val)), f"round-{number}-leader")
        # Not before: a run that is killed meanwhile selects again, from the same beam.
        state.beam = [one.version for one in ranked[: self._config.beam_width]]
        best = state.candidate(state.best)
        if leader.beats(best) or not best.rewards:
            state.best = leader.version

    def _rows(self, number: int) -> list[int]:
        """Return the validation rows of a round."""
        batches = batch_iter_over_dataset(
            range(len(self._val)), self._config.val_batch_size, seed=self._seed("val")
        )
        (rows,) = islice(batches, number - 1, number)
        return sorted(rows)

    async def _measure(
        self, candidates: Sequence[Candidate], rows: Sequence[int], occasion: str
    ) -> None:
        """Run candidates concurrently on the rows that they were not measured on yet.

        A rollout that did not end in time is a failure, or a prompt that makes the agent hang
        would be scored by the tasks on which it does not. One that no runner had begun, or that the
        infrastructure failed, says nothing about the prompt and is left out.
        """

        async def measure(candidate: Candidate, missing: list[int], concurrent: int) -> None:
            tasks = [self._val[row] for row in missing]
            name = self._state.name_batch(f"{candidate.version}-{occasion}")
            outcomes = await self._batch(candidate, tasks, "val", name, concurrent)
            for row, outcome in zip(missing, outcomes, strict=True):
                if outcome.started and outcome.infrastructure is None:
                    candidate.record(row, outcome.earned)
            self._state.recount()
            await self._save()
            self._reporter.measured(candidate, rows)

        todo = [(one, missing) for one in candidates if (missing := one.missing(rows))]
        async with anyio.create_task_group() as group:
            for candidate, missing in todo:
                group.start_soon(measure, candidate, missing, len(todo))

    async def _batch(
        self,
        candidate: Candidate,
        tasks: Dataset[Any],
        mode: RolloutMode,
        name: str,
        concurrent: int,
    ) -> BatchOutcome:
        outcomes = await run_batch(
            self._store,
            tasks,
            resources=await self._snapshots.get(candidate.version),
            mode=mode,
            # Concurrent batches share the runners, so each gets more time.
            timeout=self._config.rollout_batch_timeout * concurrent,
            description=f"{candidate.version} {mode}",
            run=self._run,
            name=name,
        )
        self._conversations.look_at(outcomes)
        self._state.count_batch(name, len(outcomes))
        self._state.look_at(outcomes)
        return outcomes

    async def _save(self) -> None:
        if self._run.name:
            async with self._saving:  # saves must reach a remote store in order
                await self._run.save(self._state.model_dump(mode="json"))

    # -- random draws and cost ---------------------------------------------------------------------

    def _most_of(self, number: int) -> dict[str, int]:
        """Return the most rollouts of a round, and the most calls of its first proposal."""
        return {"rollouts": self._max_rollouts(number), "calls": self._config.calls_per_proposal}

    def _max_rollouts(self, number: int) -> int:
        """Return the number of rollouts of a round in which every proposal is usable."""
        slots, n_val = self._config.proposals_per_round, len(self._val)
        rows = self._rows(number)
        beam = [self._state.candidate(version) for version in self._state.beam]
        return (
            slots * (min(self._config.gradient_batch_size, len(self._train)) + len(rows))
            + slots * self._config.forks_per_proposal
            + sum(len(candidate.missing(rows)) for candidate in beam)
            + n_val
            - len(rows)
        )

    def _seed(self, purpose: str) -> int:
        return self._random(purpose).getrandbits(32)

    def _random(self, *purpose: object) -> Random:
        return Random("|".join(map(str, (self._state.seed, *purpose))))
