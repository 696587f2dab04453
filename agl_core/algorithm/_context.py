"""The context in which an algorithm runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.agent import TrainerView
    from agl_core.algorithm._reward_scale import RewardRange
    from agl_core.algorithm._run import Run
    from agl_core.algorithm._utils import LLMProxyLike
    from agl_core.execution import ExecutionStrategy
    from agl_core.llm_server import LLMServer
    from agl_core.store import LightningStore
    from agl_core.types import NamedResources


@dataclass(frozen=True, slots=True)
class RunContext:
    """Everything that an algorithm may use in one run.

    A trainer fills every field that the run has. Without a trainer, the algorithm's setters fill
    them.

    Attributes:
        store: The store that this run's runners see.
        adapter: Turns spans into what the algorithm reads.
        llm_proxy: The proxy in front of the models.
        llm_server: The server of the model that is trained; it is running.
        initial_resources: The resources to start from.
        run: The run, new or resumed.
        trainer: The trainer.
        strategy: Decides where the runners run.
        reward_range: Lowest and highest possible reward, if the user declared them.
    """

    store: LightningStore | None = None
    adapter: Adapter[Any, Any] | None = None
    llm_proxy: LLMProxyLike | None = None
    llm_server: LLMServer | None = None
    initial_resources: NamedResources | None = None
    run: Run | None = None
    trainer: TrainerView | None = None
    strategy: ExecutionStrategy | None = None
    reward_range: RewardRange | None = None
