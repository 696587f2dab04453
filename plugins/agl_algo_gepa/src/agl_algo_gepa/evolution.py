"""The run's side of GEPA: rollouts, reflections, history; all of it on the run's loop.

The engine of the ``gepa`` library decides what to try; it is a function of the seed and of what is
answered here. So a run is resumed by letting the engine begin again, and answering from the journal
what was answered before: no rollout and no call is made twice, and it takes the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

import anyio

from agl_algo_gepa.state import Candidate, GEPAState
from agl_core.adapter import TraceToMessages
from agl_core.algorithm import BatchOutcome, ChatReply, Run, run_batch
from agl_core.store import LightningStore
from agl_core.types import Dataset, PromptTemplate
from agl_prompt_search import (
    Budget,
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
_SILENT_ROUNDS = 3  # in a row without any answer of the model end the search


class Row(NamedTuple):
    """A task, as the engine knows it."""

    split: Split
    index: int


class Job(NamedTuple):
    """A candidate to be: an edit of some of these prompts, by what happened on some rows."""

    prompts: Mapping[str, str]
    components: Sequence[str]
    rows: Sequence[Row]


class _Batch(NamedTuple):
    """Rollouts of one candidate."""

    name: str
    candidate: Candidate
    rows: Sequence[Row]


class Evolution:
    """Answers the engine, and keeps the history.

    Used on one event loop, by one call at a time.

    Args:
        state: Where to start: a new state, or one with the journal of a run that goes on.
        run: Where the state is saved; it may be one without a name, which saves nothing.
        store: Where rollouts go.
        adapter: Turns spans into conversations.
        train: Tasks to reflect on.
        val: Tasks to score candidates on.
        snapshots: What the agent runs with, by version.
        templates: The prompts that evolve; edits keep their placeholders.
        model: Whom to ask.
        reflection_model: The model's name.
        files: The question.
        send_seed: Whether requests carry a seed.
        budget: Limits.
        most_rollouts: Rollouts that an iteration may take.
        most_calls: Calls that an iteration may take.
        max_rounds: Most iterations.
        perfect_score: Reward that cannot be exceeded; None if there is none.
        batch_timeout: Seconds for a batch of rollouts.
        reporter: Told of every step.
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
        most_rollouts: int,
        most_calls: int,
        max_rounds: int,
        perfect_score: float | None,
        batch_timeout: float,
        reporter: Reporter,
    ) -> None:
        self._state = state
        self._run = run
        self._store = store
        self._adapter = adapter
        self._tasks: Mapping[Split, Dataset[Any]] = {"train": train, "val": val}
        self._snapshots = snapshots
        self._templates = templates
        self._wanted = {name: placeholders(one) for name, one in templates.items()}
        self._model = model
        self._reflection_model = reflection_model
        self._files = files
        self._send_seed = send_seed
        self._budget = budget
        self._most_rollouts = most_rollouts
        self._most_calls = most_calls
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
        """Tell whether the budget allows to measure the seed; if not, the search has stopped."""
        spent, n_val = self._state.spent, len(self._tasks["val"])
        self._state.stopped = self._budget.exceeded_by(spent, rollouts=n_val)
        if self._state.stopped:
            self._reporter.stopped(self._state.stopped)
        return not self._state.stopped

    # -- evaluation ------------------------------------------------------------------------------

    async def evaluate(
        self, items: Sequence[tuple[Mapping[str, str], Sequence[Row]]]
    ) -> list[list[float]]:
        """Return the rewards of candidates on rows; what is known is not run again.

        A rollout that failed, has no reward or did not end in time counts 0.

        Args:
            items: Prompts, and the rows to run them on; they are run side by side.
        """
        wanted: dict[tuple[str, Split], dict[Row, None]] = {}
        versions: list[str] = []
        for prompts, rows in items:
            # Prompts that nobody proposed are a combination that the engine made of candidates.
            candidate = self._state.with_prompts(prompts) or self._new_candidate(prompts)
            versions.append(candidate.version)
            for row in rows:
                if (candidate.version, row) not in self._scores:
                    wanted.setdefault((candidate.version, row.split), {})[row] = None
        batches: list[_Batch] = []
        for (version, split), rows in wanted.items():
            # Numbered in the order in which they are asked for: a resumed run names them alike.
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

    async def _measure(self, batch: _Batch, side_by_side: int) -> None:
        known = self._state.journal.rewards.get(batch.name)
        if known is None:
            self._go_on()
            outcomes = await self._roll_out(batch, side_by_side)
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

    async def _roll_out(self, batch: _Batch, side_by_side: int = 1) -> BatchOutcome:
        split = batch.rows[0].split
        return await run_batch(
            self._store,
            [self._tasks[split][row.index] for row in batch.rows],
            resources=await self._snapshots.get(batch.candidate.version),
            mode=split,
            # Batches that run at the same time share the runners, and so their time.
            timeout=self._batch_timeout * side_by_side,
            description=f"{batch.candidate.version} {split}",
            run=self._run,
            name=batch.name,
        )

    def _keep_experiments(self, batch: _Batch, outcomes: BatchOutcome) -> None:
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if row.split == "train":
                found = describe(outcome, self._adapter)
                self._experiments[batch.candidate.version, row] = found

    # -- reflection ------------------------------------------------------------------------------

    async def reflect(self, jobs: Sequence[Job]) -> list[dict[str, str]]:
        """Ask for new candidates, side by side.

        Returns:
            The new texts of each, by prompt; none if it is rejected.
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
        """Fill in a candidate's prompts, or why it is rejected."""
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
        """Return the answer that has the new text of a prompt."""
        key = _key(candidate, name)
        if key in self._answers:
            self._model.recall(self._reflection_model, self._answers[key])
            return self._answers[key]
        if limit := self._model.limit():
            return ChatReply(problem=limit)
        self._go_on()
        dice = Random(f"{self._state.seed}|{key}")
        parent = self._known(job.prompts).version
        messages = self._files.render(
            "reflect",
            dice.randrange(len(self._files.variants("reflect"))),
            name=name,
            prompt_template=job.prompts[name],
            others={other: text for other, text in job.prompts.items() if other != name},
            experiments=[self._experiments[parent, row] for row in dict.fromkeys(job.rows)],
        )
        seed = dice.getrandbits(31) if self._send_seed else None
        self._answers[key] = await self._model.ask(self._reflection_model, messages, seed)
        await self._save()
        return self._answers[key]

    async def _load_experiments(self, job: Job) -> None:
        """Read what happened on the rows of a job, if that was before this process began."""
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
            # Its luck on other tasks may be better; what is known of it stays known.
            candidate.rejected += ", which gets another chance"
            first.rejected, first.outclassed = "", False

    # -- verdicts of the engine ------------------------------------------------------------------

    async def turn_down(self, prompts: Mapping[str, str], reason: str) -> None:
        """Enter that a candidate is not good enough to be measured on the validation tasks."""
        candidate = self._known(prompts)
        if candidate.missing(self._all_val):
            candidate.rejected, candidate.outclassed = reason, True
            self._tell(self._reporter.proposed, candidate)

    async def combine(self, prompts: Mapping[str, str], parents: Sequence[int]) -> None:
        """Enter which candidates, by the engine's numbers, a combination is made of."""
        candidate = self._known(prompts)
        if candidate.parent is None:
            candidate.parent = "+".join(self._pool[index] for index in parents)

    async def end_round(self, pool: Sequence[Mapping[str, str]], front: Collection[int]) -> bool:
        """Enter that the seed was measured, or that an iteration is over.

        Args:
            pool: The candidates that the engine keeps, by its numbers.
            front: The numbers of those on the Pareto front.

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
        if self._silent_rounds == _SILENT_ROUNDS:
            why = next(one.rejected for one in reversed(state.history) if one.rejected)
            return f"the model answered nothing in {_SILENT_ROUNDS} rounds: {why}"
        rewards = state.candidate(state.best).rewards.values()
        if self._perfect_score is not None and min(rewards) >= self._perfect_score:
            return f"{state.best} solves every validation task"
        more = {"rollouts": self._most_rollouts, "calls": self._most_calls}
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
        """Return the candidate that these prompts were first proposed as."""
        found = self._state.with_prompts(prompts)
        assert found is not None, "the engine works on what it was given"
        return found

    def _go_on(self) -> None:
        """Something happens that no earlier process has seen."""
        if self._replays:
            self._replays = False
            self._reporter.resumed(self._state)

    def _tell(self, tell: Callable[[Any], None], about: object) -> None:
        if not self._replays:
            tell(about)

    async def _save(self) -> None:
        # What is replayed is a part of what is saved.
        if self._run.name and not self._replays:
            async with self._saving:  # in order, also where the store is a server
                await self._run.save(self._state.model_dump(mode="json"))


def _key(candidate: Candidate, name: str) -> str:
    return f"{candidate.version}/{name}"


def _rank(candidate: Candidate) -> tuple[float, int]:
    """Best first; of equals the older one."""
    score = candidate.score()
    return -(score.mean if score else 0.0), candidate.number
