"""Faults of runners: what an agent is called with, and what becomes of its result."""

from __future__ import annotations

from typing import Any

from agl_core.emitter import emit_reward
from agl_core.store import InterceptedStore
from faults.runners import Runner, _Agent, _Through

GOOD = ()


class RunsWithTheLatestResources(_Through):
    """A rollout gets the latest resources in place of those that it names."""

    CAUGHT_BY = "test_a_rollout_runs_with_its_own_resources"

    class changes(InterceptedStore):
        async def get_resources_by_id(self, resources_id):
            return await self.get_latest_resources()


class ForgetsTheMode(_Agent):
    """The agent is not told the mode of its rollout."""

    CAUGHT_BY = "test_the_mode_decides_which_method_is_called"

    def init(self, agent, **kwargs: Any):
        for name in ("training_rollout", "validation_rollout"):
            setattr(agent, name, self.without_mode(getattr(agent, name)))
        super().init(agent, **kwargs)

    def without_mode(self, plain):
        return lambda task, resources, rollout: plain(
            task, resources, rollout.model_copy(update={"mode": None})
        )


class ValidatesAsItTrains(_Agent):
    """Validation calls the method for training."""

    CAUGHT_BY = "test_the_mode_decides_which_method_is_called"

    def init(self, agent, **kwargs: Any):
        agent.validation_rollout = agent.training_rollout
        super().init(agent, **kwargs)


class KeepsWhatAnAgentDidToItsTask(_Agent):
    """A retry gets the object of the first try."""

    CAUGHT_BY = "test_a_retry_gets_the_task_as_it_was_queued"

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, Any] = {}

    def work(self, plain, task, resources, rollout):
        return plain(self.tasks.setdefault(rollout.rollout_id, task), resources, rollout)


class TakesTrueForNoReward(_Agent):
    """An agent that returns True or False has no reward."""

    CAUGHT_BY = "test_any_number_is_a_reward_and_stored_once"

    def work(self, plain, task, resources, rollout):
        result = plain(task, resources, rollout)
        return None if isinstance(result, bool) else result


class LosesNumbersOfLibraries(_Agent):
    """A number that is not Python's own, such as NumPy's, is no reward."""

    CAUGHT_BY = "test_any_number_is_a_reward_and_stored_once"

    def work(self, plain, task, resources, rollout):
        result = plain(task, resources, rollout)
        return result if isinstance(result, int | float | list) else None


class StoresRewardsTwice(_Agent):
    """It emits the reward that it also stores as the result."""

    CAUGHT_BY = "test_any_number_is_a_reward_and_stored_once"

    def work(self, plain, task, resources, rollout):
        result = plain(task, resources, rollout)
        if result is not None and not isinstance(result, list):
            emit_reward(result)
        return result


class LosesReturnedSpans(_Agent):
    """Spans that an agent returns are not stored."""

    CAUGHT_BY = "test_spans_that_an_agent_returns_are_stored_in_order"

    def work(self, plain, task, resources, rollout):
        result = plain(task, resources, rollout)
        return None if isinstance(result, list) else result


class StoresReturnedSpansBackwards(_Agent):
    """Spans that an agent returns are stored from the last to the first."""

    CAUGHT_BY = "test_spans_that_an_agent_returns_are_stored_in_order"

    def work(self, plain, task, resources, rollout):
        result = plain(task, resources, rollout)
        return result[::-1] if isinstance(result, list) else result


class WritesTwoEnds(_Through):
    """Each attempt has failed until its result is stored."""

    CAUGHT_BY = "test_the_end_is_written_once"

    class changes(InterceptedStore):
        async def update_attempt(self, rollout_id, attempt_id, **changes):
            if changes.get("status") == "succeeded":
                await super().update_attempt(rollout_id, attempt_id, status="failed")
            return await super().update_attempt(rollout_id, attempt_id, **changes)


class _Tells(Runner):
    """A runner whose hooks are told what ``tell`` makes of it."""

    def tell(self, told: dict[str, Any]) -> dict[str, Any]:
        return told

    def init(self, agent, *, hooks=None, **kwargs: Any):
        for hook in hooks or ():
            for name in ("on_trace_end", "on_rollout_end"):
                setattr(hook, name, self.telling(getattr(hook, name)))
        super().init(agent, hooks=hooks, **kwargs)

    def telling(self, plain):
        async def callback(**told):
            await plain(**self.tell(told))

        return callback


class TellsHooksNoError(_Tells):
    """A hook cannot see that the agent failed."""

    CAUGHT_BY = "test_hooks_are_told_the_spans_and_the_error"

    def tell(self, told):
        return {**told, "error": None} if "error" in told else told


class TellsHooksNoSpans(_Tells):
    """A hook gets an empty trace."""

    CAUGHT_BY = "test_hooks_are_told_the_spans_and_the_error"

    def tell(self, told):
        return {**told, "spans": []} if "spans" in told else told


class HasOneNameForAll(Runner):
    """All workers are worker 0."""

    CAUGHT_BY = "test_each_worker_has_a_name_of_its_own"

    def init_worker(self, worker_id, store, **kwargs: Any):
        super().init_worker(0, store, **kwargs)
