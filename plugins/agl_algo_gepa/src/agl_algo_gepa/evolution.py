"""Rollouts, reflections and history of a GEPA run; all of it on the run's event loop.

The engine of the ``gepa`` library decides what to try. Its decisions are a function of the seed and
of the results returned here. To resume a run, the engine starts again and gets the earlier results
from the journal: no rollout and no call is repeated, and the decisions are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

import anyio

from agl_algo_gepa.state import Candidate, GEPAState
from agl_core.adapter import TraceToMessages
from agl_core.algorithm import BatchOutcome, Run, run_batch
from agl_core.store import LightningStore
from agl_core.types import Dataset, PromptTemplate
from agl_prompt_search import (
    Budget,
    ChatReply,
    ConversationCheck,
    Experiment,
    MeteredModel,
    PromptFiles,
    Reporter,
    Snapshots,
    describe,
    find_mistake,
    placeholders,
    unwrap,
)

__all__ = ["Evolution", "Job", "Row"]

Split = Literal["train", "val"]
_MAX_SILENT_ROUNDS = 3  # rounds in a row without an answer of the model, after which it stops


class Row(NamedTuple):
    """A task, as the engine refers to it."""

    split: Split
    index: int


class Job(NamedTuple):
    """A requested edit: the prompts, the names of those to edit, and the rows to reflect on."""

    prompts: Mapping[str, str]
    components: Sequence[str]
    rows: Sequence[Row]


class _Batch(NamedTuple):
    """Rollouts of one candidate."""

    name: str
    candidate: Candidate
    rows: Sequence[Row]


class Evolution:
    """Evaluates and proposes candidates for the engine, and keeps the history.

    For one event loop and one call at a time.

    Args:
        state: State to start from: a new one, or one with the journal of a resumed run.
        run: Saves the state; a run without a name saves nothing.
        store: Store of the rollouts.
        adapter: Turns spans into conversations.
        train: Training tasks, to reflect on.
        val: Validation tasks, to score candidates on.
        snapshots: Resources of the agent, by version.
        templates: The prompts that evolve; edits must keep their placeholders.
        model: Client for the reflection model.
        reflection_model: Name of the reflection model.
        files: Prompt files.
        send_seed: Whether requests carry a seed.
        budget: Limits.
        iteration_rollouts: Largest number of rollouts of one iteration.
        iteration_calls: Largest number of calls of one iteration.
        max_rounds: Limit of iterations.
        perfect_score: Reward that cannot be exceeded; None if there is none.
        batch_timeout: Seconds for a batch of rollouts.
        reporter: Receives every step.
    """

    def __init__(
        self,
        state: GEPAState,
        *,
        run: Run,
        store: LightningStore,
        adapter: TraceToMessages,
        train: Dataset[Any],
        val: Dataset[Any],
        snapshots: Snapshots,
        templates: Mapping[str, PromptTemplate],
        model: MeteredModel,
        reflection_model: str,
        files: PromptFiles,
        send_seed: bool,
        budget: Budget,
        iteration_rollouts: int,
        iteration_calls: int,
        max_rounds: int,
        perfect_score: float | None,
        batch_timeout: float,
        reporter: Reporter,
    ) -> None:
        self._state = state
        self._run = run
        self._store = store
        self._adapter = adapter
        self._conversations = ConversationCheck("GEPA", adapter)
        self._tasks: Mapping[Split, Dataset[Any]] = {"train": train, "val": val}
        self._snapshots = snapshots
        self._templates = templates
        self._wanted = {name: placeholders(one) for name, one in templates.items()}
        self._model = model
        self._reflection_model = reflection_model
        self._files = files
        self._send_seed = send_seed
        self._budget = budget
        self._iteration_rollouts = iteration_rollouts
        self._iteration_calls = iteration_calls
        self._max_rounds = max_rounds
        self._perfect_score = perfect_score
        self._batch_timeout = batch_timeout
        self._reporter = reporter
        self._scores: dict[tuple[str, Row], float] = {}
        self._experiments: dict[tuple[str, Row], Experiment] = {}
        self._batches: list[_Batch] = []
        self._answers = state.journal.answers
        self._replays = bool(state.journal.rewards)
        self._all_val = range(len(val))
        self._pool: Sequence[str] = []
        self._saving = anyio.Lock()
        self._answered = self._failed = self._silent_rounds = 0

    def may_begin(self) -> bool:
        """Return whether the budget allows the seed to be measured; if not, the search stops."""
        spent, n_val = self._state.spent, len(self._tasks["val"])
        self._state.stopped = self._budget.exceeded_by(spent, rollouts=n_val)
        if self._state.stopped:
            self._reporter.stopped(self._state.stopped)
        return not self._state.stopped

    # -- evaluation ------------------------------------------------------------------------------

    async def evaluate(
        self, items: Sequence[tuple[Mapping[str, str], Sequence[Row]]]
    ) -> list[list[float]]:
        """Return the rewards of candidates on rows; known rewards are not measured again.

        A rollout that failed, has no reward or did not end in time counts 0.

        Args:
            items: Prompts, and the rows to run them on; all of them run concurrently.
        """
        wanted: dict[tuple[str, Split], dict[Row, None]] = {}
        versions: list[str] = []
        for prompts, rows in items:
            # Unknown prompts are a merge of candidates, made by the engine.
            candidate = self._state.with_prompts(prompts) or self._new_candidate(prompts)
            versions.append(candidate.version)
            for row in rows:
                if (candidate.version, row) not in self._scores:
                    wanted.setdefault((candidate.version, row.split), {})[row] = None
        batches: list[_Batch] = []
        for (version, split), rows in wanted.items():
            # Numbered in the order of the requests, so a resumed run uses the same names.
            name = f"{version}-{split}-{len(self._batches) + len(batches)}"
            batches.append(_Batch(name, self._state.candidate(version), list(rows)))
        self._batches += batches
        async with anyio.create_task_group() as group:
            for batch in batches:
                group.start_soon(self._measure, batch, len(batches))
        return [
            [self._scores[version, row] for row in rows]
            for version, (_, rows) in zip(versions, items, strict=True)
        ]

    async def _measure(self, batch: _Batch, concurrent: int) -> None:
        known = self._state.journal.rewards.get(batch.name)
        if known is None:
            self._end_replay()
            outcomes = await self._roll_out(batch, concurrent)
            known = [
                None if outcome.rollout.status == "cancelled" else outcome.reward or 0.0
                for outcome in outcomes
            ]
            self._keep_experiments(batch, outcomes)
            self._state.journal.rewards[batch.name] = known
        for row, reward in zip(batch.rows, known, strict=True):
            self._scores[batch.candidate.version, row] = reward or 0.0
            if row.split == "val":
                batch.candidate.rewards[row.index] = reward or 0.0
        self._state.count_batch(batch.name, len(batch.rows))
        await self._save()
        if batch.rows[0].split == "val" and not self._replays:
            self._reporter.measured(batch.candidate, sorted(batch.candidate.rewards))

    async def _roll_out(self, batch: _Batch, concurrent: int = 1) -> BatchOutcome:
        split = batch.rows[0].split
        outcomes = await run_batch(
            self._store,
            [self._tasks[split][row.index] for row in batch.rows],
            resources=await self._snapshots.get(batch.candidate.version),
            mode=split,
            # Concurrent batches share the runners, so each gets more time.
            timeout=self._batch_timeout * concurrent,
            description=f"{batch.candidate.version} {split}",
            run=self._run,
            name=batch.name,
        )
        self._conversations.look_at(outcomes)
        return outcomes

    def _keep_experiments(self, batch: _Batch, outcomes: BatchOutcome) -> None:
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if row.split == "train":
                found = describe(outcome, self._adapter)
                self._experiments[batch.candidate.version, row] = found

    # -- reflection ------------------------------------------------------------------------------

    async def reflect(self, jobs: Sequence[Job]) -> list[dict[str, str]]:
        """Propose new candidates concurrently.

        Returns:
            The new texts of each job, by prompt; an empty dict if it is rejected.
        """
        made: list[tuple[Candidate, Job]] = []
        for job in jobs:
            candidate = self._new_candidate(job.prompts)
            candidate.parent = self._known(job.prompts).version
            made.append((candidate, job))
            if not all(_key(candidate, name) in self._answers for name in job.components):
                await self._load_experiments(job)
        async with anyio.create_task_group() as group:
            for candidate, job in made:
                group.start_soon(self._propose, candidate, job)
        for candidate, _ in made:
            self._reject_repetition(candidate)
            self._tell(self._reporter.proposed, candidate)
        await self._save()
        return [
            {name: one.prompts[name] for name in job.components if not one.rejected or one.repeats}
            for one, job in made
        ]

    async def _propose(self, candidate: Candidate, job: Job) -> None:
        """Set a candidate's prompts, or the reason of its rejection."""
        for name in job.components:
            reply = await self._ask(candidate, name, job)
            candidate.prompts[name] = text = unwrap(reply.text)
            edited = self._templates[name].model_copy(update={"template": text})
            if reply.problem:
                problem = f"no edit: {reply.problem}"
            else:
                problem = find_mistake(edited, self._wanted[name])
            if problem:
                which = f"{name}: " if len(self._templates) > 1 else ""
                candidate.rejected = which + problem
                return

    async def _ask(self, candidate: Candidate, name: str, job: Job) -> ChatReply:
        """Return the model's answer with the new text of a prompt."""
        key = _key(candidate, name)
        if key in self._answers:
            self._model.recall(self._reflection_model, self._answers[key])
            return self._answers[key]
        if limit := self._model.limit():
            return ChatReply(problem=limit)
        self._end_replay()
        rng = Random(f"{self._state.seed}|{key}")
        parent = self._known(job.prompts).version
        messages = self._files.render(
            "reflect",
            rng.randrange(len(self._files.variants("reflect"))),
            name=name,
            prompt_template=job.prompts[name],
            others={other: text for other, text in job.prompts.items() if other != name},
            experiments=[self._experiments[parent, row] for row in dict.fromkeys(job.rows)],
        )
        seed = rng.getrandbits(31) if self._send_seed else None
        self._answers[key] = await self._model.ask(self._reflection_model, messages, seed)
        await self._save()
        return self._answers[key]

    async def _load_experiments(self, job: Job) -> None:
        """Load the rollouts of a job's rows that an earlier process made."""
        version = self._known(job.prompts).version
        missing = {row for row in job.rows if (version, row) not in self._experiments}
        for batch in self._batches:
            if batch.candidate.version == version and missing.intersection(batch.rows):
                self._keep_experiments(batch, await self._roll_out(batch))

    def _reject_repetition(self, candidate: Candidate) -> None:
        first = self._known(candidate.prompts)
        if candidate.rejected or first is candidate:
            return
        candidate.rejected = f"the edit is the same as {first.version}"
        candidate.repeats = first.outclassed
        if first.outclassed:
            # It may do better on another minibatch; its known rewards stay.
            candidate.rejected += ", which gets another chance"
            first.rejected, first.outclassed = "", False

    # -- decisions of the engine -----------------------------------------------------------------

    async def reject(self, prompts: Mapping[str, str], reason: str) -> None:
        """Record that a candidate is not measured on the validation tasks."""
        candidate = self._known(prompts)
        if candidate.missing(self._all_val):
            candidate.rejected, candidate.outclassed = reason, True
            self._tell(self._reporter.proposed, candidate)

    async def record_parents(self, prompts: Mapping[str, str], parents: Sequence[int]) -> None:
        """Record the parents of a merged candidate; they are indices of the engine's pool."""
        candidate = self._known(prompts)
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
        self._pool = [self._known(prompts).version for prompts in pool]
        kept = sorted((state.candidate(version) for version in self._pool), key=_rank)
        state.front = [one.version for one in kept if self._pool.index(one.version) in front]
        state.best = kept[0].version
        state.rounds += bool(state.curve)
        state.add_curve_point()
        await self._save()
        self._tell(self._reporter.round_ended if state.rounds else self._reporter.started, state)
        state.stopped = self._reason_to_stop()
        if state.stopped:
            self._reporter.stopped(state.stopped)
        return bool(state.stopped) or state.rounds == self._max_rounds

    def _reason_to_stop(self) -> str:
        state, model = self._state, self._model
        if model.answers > self._answered:
            self._silent_rounds = 0
        elif model.failures > self._failed:
            self._silent_rounds += 1
        self._answered, self._failed = model.answers, model.failures
        if self._silent_rounds == _MAX_SILENT_ROUNDS:
            why = next(one.rejected for one in reversed(state.history) if one.rejected)
            return f"the model gave no answer in {_MAX_SILENT_ROUNDS} rounds: {why}"
        rewards = state.candidate(state.best).rewards.values()
        if self._perfect_score is not None and min(rewards) >= self._perfect_score:
            return f"{state.best} solves every validation task"
        more = {"rollouts": self._iteration_rollouts, "calls": self._iteration_calls}
        return self._budget.exceeded_by(state.spent, **more)

    # -- history ---------------------------------------------------------------------------------

    def _new_candidate(self, prompts: Mapping[str, str]) -> Candidate:
        candidate = Candidate(
            version=f"v{len(self._state.history)}",
            round=self._state.rounds + 1,
            prompts=dict(prompts),
        )
        self._state.add(candidate)
        return candidate

    def _known(self, prompts: Mapping[str, str]) -> Candidate:
        """Return the first candidate with these prompts."""
        found = self._state.with_prompts(prompts)
        assert found is not None, "the engine uses only prompts that it was given"
        return found

    def _end_replay(self) -> None:
        """Note that the journal is used up: from here on results are new."""
        if self._replays:
            self._replays = False
            self._reporter.resumed(self._state)

    def _tell(self, tell: Callable[[Any], None], about: object) -> None:
        if not self._replays:
            tell(about)

    async def _save(self) -> None:
        # During the replay nothing is saved: the saved state already holds all of it.
        if self._run.name and not self._replays:
            async with self._saving:  # saves must reach a remote store in order
                await self._run.save(self._state.model_dump(mode="json"))


def _key(candidate: Candidate, name: str) -> str:
    return f"{candidate.version}/{name}"


def _rank(candidate: Candidate) -> tuple[float, int]:
    """Return the sort key: best first, and the older one of equals."""
    score = candidate.score()
    return -(score.mean if score else 0.0), candidate.number
