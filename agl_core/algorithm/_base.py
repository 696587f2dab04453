"""The algorithm contract: code that reads the store and improves a resource.

::

    class Search(Algorithm):
        async def run(self, train_dataset=None, val_dataset=None):
            store = self.get_store()
            ...

A short algorithm can be a function instead: :func:`agl_core.algorithm.algo`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agl_core.algorithm._context import RunContext
from agl_core.plugins import get_registry
from agl_core.plugins._events import notify
from agl_core.types import Dataset, NamedResources

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.agent import TrainerView
    from agl_core.algorithm._reward_scale import RewardScale
    from agl_core.algorithm._run import Run
    from agl_core.algorithm._utils import LLMProxyLike
    from agl_core.llm_server import LLMServer
    from agl_core.store import LightningStore

T = TypeVar("T")


class Algorithm:
    """Enqueues tasks, reads their results, and improves a resource.

    Override :meth:`run`, as a coroutine function or as a plain function; a plain one is run in a
    worker thread, where ``asyncio.run(store.…)`` works. The run ends when it returns.

    One object serves one run at a time.
    """

    # On the class, so that a subclass need not call super().__init__().
    _context: RunContext = RunContext()

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Do the work.

        Args:
            train_dataset: Tasks to learn from.
            val_dataset: Tasks to measure progress on.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define run")

    def is_async(self) -> bool:
        """Tell whether :meth:`run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def display_name(self) -> str:
        """Name of this algorithm in events and logs: that of its function or of its class."""
        return getattr(self, "__name__", type(self).__qualname__)

    async def check(self) -> Mapping[str, str] | None:
        """Check what a run will need, for ``agl train --check``: a key, a package, a model.

        Does nothing by default. It spends nothing and changes nothing.

        Returns:
            What a run will use, by name, for display: sizes that follow from others, for example.

        Raises:
            AglError: A run would fail; the message says what to do.
        """

    def has_more_to_do(self, run: Run) -> bool:
        """Return whether a finished run goes on, because its options ask for more than was done.

        For example for more steps. By default it does not.

        Args:
            run: The finished run, with its last state.
        """
        return False

    def report_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report to listeners that a step is done: a batch, a candidate, an epoch.

        Args:
            step: Counts from 0 within a run.
            metrics: Figures of this step by name.
        """
        notify("algorithm_step", algorithm=self.display_name, step=step, metrics=dict(metrics))

    # -- what the algorithm works with ------------------------------------------------------------

    @property
    def context(self) -> RunContext:
        """The context that the trainer set, or that the setters below filled."""
        return self._context

    def set_context(self, context: RunContext) -> None:
        """Set the context; the trainer calls this once before each :meth:`run`."""
        self._context = context

    def get_store(self) -> LightningStore:
        """Return the store.

        Raises:
            ValueError: There is none.
        """
        return self._required("store", self._context.store)

    def get_adapter(self) -> Adapter[Any, Any]:
        """Return the adapter.

        Raises:
            PluginError: The trainer has none, because its default is not installed or not usable.
            ValueError: There is none.
        """
        if self._context.adapter is None and self._context.trainer is not None:
            get_registry().find("adapter", "triplet")  # raises what keeps the default from use
        return self._required("adapter", self._context.adapter)

    def get_trainer(self) -> TrainerView:
        """Return the trainer.

        Raises:
            ValueError: No trainer runs this algorithm.
        """
        return self._required("trainer", self._context.trainer)

    def get_llm_proxy(self) -> LLMProxyLike | None:
        """Return the proxy, or None if the run has none."""
        return self._context.llm_proxy

    def get_llm_server(self) -> LLMServer | None:
        """Return the server, whose weights an algorithm may update, or None if there is none."""
        return self._context.llm_server

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources to start from, or None."""
        return self._context.initial_resources

    def new_scale(self) -> RewardScale:
        """Return the scale of the run's rewards, as far as the user declared it."""
        from agl_core.algorithm._reward_scale import RewardScale

        return RewardScale(self._context.reward_range)

    def get_run(self) -> Run:
        """Return the run, which stores the state to resume from; by default it has no name.

        Raises:
            ValueError: There is no store.
        """
        from agl_core.algorithm._run import Run

        if self._context.run is not None:
            return self._context.run
        run = Run(self.get_store())
        run.reward_range = self._context.reward_range
        return run

    def _required(self, name: str, value: T | None) -> T:
        if value is None:
            raise ValueError(
                f"{type(self).__qualname__} has no {name}: run it with a trainer, or call "
                f"set_{name} first"
            )
        return value

    # -- running an algorithm by hand, as in 0.3 ---------------------------------------------------

    def set_trainer(self, trainer: TrainerView) -> None:
        """Set the trainer."""
        self._context = replace(self._context, trainer=trainer)

    def set_store(self, store: LightningStore) -> None:
        """Set the store."""
        self._context = replace(self._context, store=store)

    def set_adapter(self, adapter: Adapter[Any, Any] | None) -> None:
        """Set the adapter that turns spans into what the algorithm reads."""
        self._context = replace(self._context, adapter=adapter)

    def set_llm_proxy(self, llm_proxy: LLMProxyLike | None) -> None:
        """Set the proxy in front of the models."""
        self._context = replace(self._context, llm_proxy=llm_proxy)

    def set_initial_resources(self, resources: NamedResources | None) -> None:
        """Set the resources to start from."""
        self._context = replace(self._context, initial_resources=resources)

    def set_run(self, run: Run | None) -> None:
        """Set the run, which may be a resumed one."""
        self._context = replace(self._context, run=run)


class FastAlgorithm(Algorithm):
    """An algorithm without GPU or training that ends soon; ``Trainer.dev`` accepts only these."""
