"""The algorithm contract: what reads the store and improves a resource.

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
from typing import TYPE_CHECKING, Any

from agl_core.plugins._events import notify
from agl_core.types import Dataset, NamedResources

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.algorithm._run import Run
    from agl_core.algorithm._utils import LLMProxyLike
    from agl_core.llm_server import LLMServer
    from agl_core.store.base import LightningStore

__all__ = ["Algorithm"]


class Algorithm:
    """Gives out tasks, reads what came of them, and improves a resource.

    Override :meth:`run`, as a coroutine function or as a plain function; a plain one is run in a
    worker thread, where ``asyncio.run(store.…)`` works. When it returns, the run is over.

    An algorithm holds what it is given; one object is used by one run at a time.
    """

    # On the class, so that a subclass need not call super().__init__().
    _trainer: Any = None  # algorithms are below the trainer, and do not import it
    _store: LightningStore | None = None
    _adapter: Adapter[Any, Any] | None = None
    _llm_proxy: LLMProxyLike | None = None
    _llm_server: LLMServer | None = None
    _initial_resources: NamedResources | None = None
    _run: Run | None = None

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
        """What events and logs call this algorithm: its function's name, or its class's."""
        return getattr(self, "__name__", type(self).__qualname__)

    def report_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell listeners that a step is done: a batch, a candidate, an epoch.

        Args:
            step: Counts from 0 within a run.
            metrics: Figures of this step by name.
        """
        notify("algorithm_step", algorithm=self.display_name, step=step, metrics=dict(metrics))

    # -- what the trainer hands over before it calls run -----------------------------------------

    def set_trainer(self, trainer: Any) -> None:
        """Called by the trainer before :meth:`run`."""
        self._trainer = trainer

    def get_trainer(self) -> Any:
        """Return the :class:`agl_core.Trainer`.

        Raises:
            ValueError: No trainer runs this algorithm.
        """
        if self._trainer is None:
            raise ValueError(
                f"{type(self).__qualname__} has no trainer; Trainer.fit and dev set it"
            )
        return self._trainer

    def set_store(self, store: LightningStore) -> None:
        """Called with the store that this run's runners see."""
        self._store = store

    def get_store(self) -> LightningStore:
        """Return the store.

        Raises:
            ValueError: None was set.
        """
        if self._store is None:
            raise ValueError(f"{type(self).__qualname__} has no store; call set_store")
        return self._store

    def set_adapter(self, adapter: Adapter[Any, Any] | None) -> None:
        """Called with the adapter that turns spans into what the algorithm reads."""
        self._adapter = adapter

    def get_adapter(self) -> Adapter[Any, Any]:
        """Return the adapter.

        Raises:
            ValueError: None was set.
        """
        if self._adapter is None:
            raise ValueError(f"{type(self).__qualname__} has no adapter; call set_adapter")
        return self._adapter

    def set_llm_proxy(self, llm_proxy: LLMProxyLike | None) -> None:
        """Called with the proxy that stands before the model, or None."""
        self._llm_proxy = llm_proxy

    def get_llm_proxy(self) -> LLMProxyLike | None:
        """Return the proxy, or None if the run has none."""
        return self._llm_proxy

    def set_llm_server(self, llm_server: LLMServer | None) -> None:
        """Called with the server of the model that is trained, which runs by then, or None."""
        self._llm_server = llm_server

    def get_llm_server(self) -> LLMServer | None:
        """Return the server, whose weights an algorithm may update, or None if there is none."""
        return self._llm_server

    def set_initial_resources(self, resources: NamedResources | None) -> None:
        """Called with the resources to start from, or None."""
        self._initial_resources = resources

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources to start from, or None."""
        return self._initial_resources

    def set_run(self, run: Run | None) -> None:
        """Called with the run that this is, which may be one that goes on."""
        self._run = run

    def get_run(self) -> Run:
        """Return the run, by which an algorithm goes on where it was; without a name by default.

        Raises:
            ValueError: There is no store.
        """
        from agl_core.algorithm._run import Run

        return Run(self.get_store()) if self._run is None else self._run
