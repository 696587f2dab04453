"""The trainer and the runner as agents and algorithms see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.proxy import LLMProxy
    from agl_core.store import LightningStore
    from agl_core.tracer import Tracer
    from agl_core.types import NamedResources


class TrainerView(Protocol):
    """Read-only view of the components of a :class:`~agl_core.trainer.Trainer`."""

    @property
    def n_runners(self) -> int:
        """Number of runners that work concurrently."""
        ...

    @property
    def max_rollouts(self) -> int | None:
        """Largest number of rollouts per runner; None: no limit."""
        ...

    @property
    def store(self) -> LightningStore:
        """The store of the run."""
        ...

    @property
    def tracer(self) -> Tracer:
        """The tracer of the runners."""
        ...

    @property
    def adapter(self) -> Adapter[Any, Any] | None:
        """The adapter of the algorithm; None if no adapter is installed."""
        ...

    @property
    def llm_proxy(self) -> LLMProxy | None:
        """The proxy in front of the models, if there is one."""
        ...

    @property
    def initial_resources(self) -> NamedResources | None:
        """The resources that the algorithm starts from."""
        ...


class RunnerView(Protocol):
    """Read-only view of a :class:`~agl_core.runner.Runner`."""

    @property
    def worker_id(self) -> int | None:
        """Number of the worker; None before it is initialised."""
        ...
