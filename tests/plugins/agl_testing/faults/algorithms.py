"""Faults of algorithms; the good one tries three prompts and keeps the best."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from agl_algorithm_kit import Baseline, run_batch
from agl_core.algorithm import FastAlgorithm
from agl_core.types import PromptTemplate

ENDINGS = (" Be brief.", "", " Think step by step.")


class Search(FastAlgorithm):
    """A good algorithm: measures each candidate on the validation tasks, stores the best."""

    SUITE, FIXTURE, FLAGS = (
        "AlgorithmSuite",
        "algorithm",
        ("resources", "no_data", "improves", "all_tasks"),
    )
    CAUGHT_BY = ""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        initial = self.get_initial_resources() or {}
        scored = []
        if train_dataset:
            await self.measure(initial, train_dataset, "train")
        for ending in ENDINGS if val_dataset else ():
            candidate = self.candidate(initial, ending)
            scored.append((await self.measure(candidate, val_dataset, "val"), candidate))
        if scored:
            await self.store_best(scored)

    async def measure(self, resources: Any, tasks: Any, mode: Any) -> float:
        batch = await run_batch(self.get_store(), tasks, resources=resources, mode=mode)
        return batch.score().mean

    def candidate(self, initial: Any, ending: str) -> Any:
        return {
            name: resource.model_copy(update={"template": resource.template + ending})
            if isinstance(resource, PromptTemplate)
            else resource
            for name, resource in initial.items()
        }

    async def store_best(self, scored: Any) -> None:
        await self.get_store().add_resources(max(scored, key=lambda pair: pair[0])[1])


class Measures(Baseline):
    """A good algorithm: runs every task once."""

    SUITE, FIXTURE, FLAGS = (
        "AlgorithmSuite",
        "algorithm",
        ("resources", "no_data", "resumes", "all_tasks"),
    )
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(span_verbosity="none")


GOOD = (Search, Measures)


# -- what it stores -------------------------------------------------------------------------------


class NeverStoresItsBest(Search):
    """The latest resources stay those of its last try."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        return None


class StoresItsWorst(Search):
    """It takes the minimum."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        await self.get_store().add_resources(min(scored, key=lambda pair: pair[0])[1])


class StoresWhereItBegan(Search):
    """It stores the initial resources again."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        await self.get_store().add_resources(self.get_initial_resources() or {})


class StoresTheFirstThatWorks(Search):
    """It stores the first candidate with any reward."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        await self.get_store().add_resources(scored[0][1])


class StoresWhatItNeverTried(Search):
    """It joins all endings in the end."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        joined = self.candidate(self.get_initial_resources(), "".join(ENDINGS))
        await self.get_store().add_resources(joined)


class StoresTheTextAlone(Search):
    """The best is stored as another kind of template."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        best = max(scored, key=lambda pair: pair[0])[1]
        changed = {n: r.model_copy(update={"engine": "jinja"}) for n, r in best.items()}
        await self.get_store().add_resources(changed)


class KeepsItsBestAsACheckpoint(Search):
    """The best is stored where agents do not look for it."""

    CAUGHT_BY = "test_the_best_prompt_that_was_tried_is_the_latest"

    async def store_best(self, scored: Any) -> None:
        worst = min(scored, key=lambda pair: pair[0])[1]
        best = max(scored, key=lambda pair: pair[0])[1]
        await self.get_store().update_resources("best", best)
        await self.get_store().add_resources(worst)


# -- what it does to what its caller gave ---------------------------------------------------------


class ChangesTheCallersPrompt(Search):
    """It writes the winner into the caller's object."""

    CAUGHT_BY = "test_it_leaves_what_it_was_given_alone"

    async def store_best(self, scored: Any) -> None:
        await super().store_best(scored)
        for resource in (self.get_initial_resources() or {}).values():
            if isinstance(resource, PromptTemplate):
                resource.template += ENDINGS[0]


class AddsToTheCallersResources(Search):
    """It leaves a key of its own in the caller's dict."""

    CAUGHT_BY = "test_it_leaves_what_it_was_given_alone"

    async def store_best(self, scored: Any) -> None:
        await super().store_best(scored)
        initial = self.get_initial_resources()
        if initial is not None:
            initial["best_of_search"] = next(iter(initial.values()))


class ShufflesTheCallersTasks(Measures):
    """It shuffles the caller's list."""

    CAUGHT_BY = "test_it_leaves_what_it_was_given_alone"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        if isinstance(train_dataset, list):
            random.Random(1).shuffle(train_dataset)
        await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class EmptiesTheCallersTasks(Measures):
    """It takes tasks out of the caller's list."""

    CAUGHT_BY = "test_it_leaves_what_it_was_given_alone"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await super().run(train_dataset=list(train_dataset or []), val_dataset=val_dataset)
        if isinstance(train_dataset, list):
            train_dataset.clear()


# -- what it leaves out, hides, or takes for another thing ----------------------------------------


class SkipsTheSecondHalf(Measures):
    """It measures the first half of the validation tasks."""

    CAUGHT_BY = "test_every_task_is_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        half = None if val_dataset is None else val_dataset[: len(val_dataset) // 2]
        await super().run(train_dataset=train_dataset, val_dataset=half)


class HidesALostStore(Measures):
    """It returns as if all were well when the store is gone."""

    CAUGHT_BY = "test_an_error_of_the_store_is_the_error_of_the_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        with contextlib.suppress(Exception):
            await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class TurnsErrorsIntoAnother(Measures):
    """Every error of the store becomes a KeyError without a cause."""

    CAUGHT_BY = "test_an_error_of_the_store_is_the_error_of_the_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        try:
            await super().run(train_dataset=train_dataset, val_dataset=val_dataset)
        except Exception:
            raise KeyError("run") from None


class SwallowsSystemExit(Measures):
    """It goes on after `sys.exit`, which a task group wraps in a group."""

    CAUGHT_BY = "test_system_exit_ends_the_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        try:
            await super().run(train_dataset=train_dataset, val_dataset=val_dataset)
        except (SystemExit, BaseExceptionGroup) as error:
            if isinstance(error, Exception):
                raise


class TakesFailuresForSuccesses(Search):
    """It counts only the rollouts that finished, so a prompt that mostly fails looks best."""

    CAUGHT_BY = "test_a_prompt_that_mostly_fails_is_not_the_best"

    async def measure(self, resources: Any, tasks: Any, mode: Any) -> float:
        batch = await run_batch(self.get_store(), tasks, resources=resources, mode=mode)
        rewards = [
            result.reward
            for result in batch
            if result.rollout.status == "succeeded" and result.reward is not None
        ]
        return sum(rewards) / len(rewards) if rewards else 0.0


# -- what is not its own --------------------------------------------------------------------------


class LosesOtherResources(Search):
    """The best is stored without the resources that it does not tune."""

    CAUGHT_BY = "test_resources_that_it_does_not_know_are_kept"

    async def store_best(self, scored: Any) -> None:
        best = max(scored, key=lambda pair: pair[0])[1]
        prompts: Any = {n: one for n, one in best.items() if isinstance(one, PromptTemplate)}
        await self.get_store().add_resources(prompts)


class CancelsTheWorkOfOthers(Search):
    """It empties the queue before it begins."""

    CAUGHT_BY = "test_rollouts_of_others_are_left_alone"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        for rollout in await store.query_rollouts(status_in=["queuing"]):
            await store.update_rollout(rollout.rollout_id, status="cancelled")
        await super().run(train_dataset, val_dataset)


class TakesTheWorkOfOthersForItsOwn(Search):
    """It marks every rollout of the store as one of its run."""

    CAUGHT_BY = "test_rollouts_of_others_are_left_alone"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await super().run(train_dataset, val_dataset)
        store = self.get_store()
        for rollout in await store.query_rollouts():
            await store.update_rollout(rollout.rollout_id, metadata={"run": "mine"})


class RunsEqualTasksOnce(Measures):
    """Tasks that are equal are run once."""

    CAUGHT_BY = "test_equal_tasks_are_all_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await super().run(
            train_dataset=_unique(train_dataset),  # pyright: ignore[reportCallIssue]
            val_dataset=_unique(val_dataset),
        )


def _unique(tasks: Any) -> Any:
    return None if tasks is None else [t for i, t in enumerate(tasks) if t not in list(tasks)[:i]]


class SkipsTasksThatItCannotRead(Measures):
    """A dataset that fails is shorter, and nobody hears of it."""

    CAUGHT_BY = "test_an_error_of_the_dataset_is_the_error_of_the_run"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await super().run(
            train_dataset=_readable(train_dataset),  # pyright: ignore[reportCallIssue]
            val_dataset=_readable(val_dataset),
        )


def _readable(tasks: Any) -> Any:
    found: list[Any] = []
    for index in range(len(tasks or ())):
        with contextlib.suppress(OSError):
            found.append(tasks[index])
    return None if tasks is None else found
