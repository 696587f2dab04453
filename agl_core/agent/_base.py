"""The agent contract: what every agent written as a class derives from.

::

    class MathAgent(LitAgent[dict[str, str]]):
        def rollout(self, task, resources, rollout):
            answer = solve(task["question"], resources["main_llm"])
            return 1.0 if answer == task["answer"] else 0.0
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agl_core.errors import AgentSignatureError

if TYPE_CHECKING:
    from agl_core.agent._views import RunnerView, TrainerView
    from agl_core.tracer import Tracer
    from agl_core.types import NamedResources, Rollout, RolloutRawResult

T = TypeVar("T")

_SYNC_METHODS = ("rollout", "training_rollout", "validation_rollout")
_ASYNC_METHODS = tuple(f"{name}_async" for name in _SYNC_METHODS)


class LitAgent(Generic[T]):
    """Does one task at a time; ``T`` is the type of the task.

    Override :meth:`rollout`, or :meth:`rollout_async` for an agent that awaits. Where training and
    validation differ, override the methods of those names; they default to the plain ones. An agent
    that overrides any ``*_async`` method is run through those in both modes.

    Every method takes the task, the resources by name, and the rollout with its attempt; it returns
    what :data:`~agl_core.types.RolloutRawResult` lists: usually the final reward, or None if the
    agent emitted its rewards itself.

    Thread and process safety: several runners of a process call one agent object concurrently, sync
    methods from separate threads. Agents are sent to other processes by cloudpickle, without the
    trainer and the runner.
    """

    concurrent: bool = False
    """Whether a runner may run several rollouts at a time: they share no state, and what they use
    (a browser, a service with a limit of calls) stands it. False: one at a time in each runner."""
    repeatable: bool = True
    """Whether a task may run again after a failure of the proxy or the store. False for an agent
    with side effects that must not happen twice: such a rollout fails, and is not scored."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest possible reward; see :class:`~agl_core.algorithm.RewardScale`."""

    # On the class, so that a subclass need not call super().__init__().
    _trainer: TrainerView | None = None
    _runner: RunnerView | None = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        """Nothing to set up; ``trained_agents`` is deprecated: adapters choose by agent_match."""
        if trained_agents is not None:
            warnings.warn(
                "trained_agents is ignored; give the adapter an agent_match",
                DeprecationWarning,
                stacklevel=2,
            )

    # -- where the agent runs --------------------------------------------------------------------

    def set_trainer(self, trainer: TrainerView) -> None:
        """Set the trainer; it calls this before it hands the agent to its runners."""
        self._trainer = trainer

    def get_trainer(self) -> TrainerView:
        """Return the trainer.

        Raises:
            ValueError: The agent is not run by a trainer of this process.
        """
        if self._trainer is None:
            raise ValueError(f"{type(self).__name__} has no trainer; Trainer.fit and dev set it")
        return self._trainer

    @property
    def trainer(self) -> TrainerView:
        """The trainer; see :meth:`get_trainer`."""
        return self.get_trainer()

    def set_runner(self, runner: RunnerView) -> None:
        """Set the runner; it calls this when it is initialised with this agent."""
        self._runner = runner

    def get_runner(self) -> RunnerView:
        """Return the runner that was last initialised with this agent.

        Raises:
            ValueError: No runner of this process was initialised with this agent.
        """
        if self._runner is None:
            raise ValueError(f"{type(self).__name__} has no runner; Runner.init sets it")
        return self._runner

    @property
    def runner(self) -> RunnerView:
        """The runner; see :meth:`get_runner`."""
        return self.get_runner()

    @property
    def tracer(self) -> Tracer:
        """The tracer of the runner, or of the trainer if there is no runner.

        Raises:
            ValueError: Neither is set.
        """
        tracer: Tracer | None = getattr(self._runner, "tracer", None)
        return self.get_trainer().tracer if tracer is None else tracer

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_trainer", "_runner")}

    # -- how it is called ------------------------------------------------------------------------

    def is_async(self) -> bool:
        """Tell whether runners call the ``*_async`` methods."""
        return any(self._overrides(name) for name in _ASYNC_METHODS)

    def check_signature(self) -> None:
        """Check that the methods overridden can be called as agents are.

        Raises:
            AgentSignatureError: A method has the wrong parameters; the message names the method
                and the parameters that it needs.
        """
        names = _ASYNC_METHODS if self.is_async() else _SYNC_METHODS
        overridden = [name for name in names if self._overrides(name)]
        if not overridden:
            raise AgentSignatureError(
                f"{type(self).__qualname__} overrides neither rollout nor rollout_async; "
                "define one with the parameters (self, task, resources, rollout)"
            )
        for name in overridden:
            method = getattr(self, name)
            place = f"{type(self).__qualname__}.{name}"
            try:
                inspect.signature(method).bind(None, resources=None, rollout=None)
            except TypeError as error:
                raise AgentSignatureError(
                    f"{place}{inspect.signature(method)} cannot be called as an agent ({error}); "
                    "it takes (self, task, resources, rollout)"
                ) from None
            if name in _SYNC_METHODS and inspect.iscoroutinefunction(method):
                raise AgentSignatureError(f"{place} is async; name it {name}_async")

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(LitAgent, name)

    # -- what an agent overrides -----------------------------------------------------------------

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Do one task; runs in a worker thread, with the tracer active.

        Args:
            task: The rollout's input.
            resources: Tunable resources by name.
            rollout: The rollout with its attempt (an
                :class:`~agl_core.types.AttemptedRollout` when a runner calls).
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define rollout")

    def training_rollout(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do one task of a rollout whose mode is ``train``."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do one task of a rollout whose mode is anything else."""
        return self.rollout(task, resources, rollout)

    async def rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do one task on the runner's event loop; see :meth:`rollout`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define rollout_async")

    async def training_rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do one task of a rollout whose mode is ``train``."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(
        self, task: T, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Do one task of a rollout whose mode is anything else."""
        return await self.rollout_async(task, resources, rollout)
