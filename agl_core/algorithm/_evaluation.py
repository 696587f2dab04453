"""One pass over a dataset that updates nothing: what ``agl eval`` and ``Trainer.evaluate`` run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.algorithm._base import FastAlgorithm
from agl_core.algorithm._batch import BatchOutcome, run_batch
from agl_core.algorithm._utils import LLMProxyLike, add_llm, with_llm_proxy
from agl_core.errors import ConfigError
from agl_core.types import Dataset, NamedResources, RolloutMode

if TYPE_CHECKING:
    from agl_core.store import LightningStore


class Evaluation(FastAlgorithm):
    """Measures an agent on the validation dataset, or else on the training dataset.

    Args:
        resources: Resources of the rollouts, or the id of a stored snapshot; by default the latest
            snapshot in the store, or else the initial resources. The model behind the trainer's
            proxy is added to resources that name no model, but not to a stored snapshot.
        mode: Mode of the rollouts.
        timeout: Seconds for the whole dataset; rollouts that are still open then are cancelled.

    Attributes:
        outcome: An outcome per task; None until the run is over.
    """

    def __init__(
        self,
        *,
        resources: NamedResources | str | None = None,
        mode: RolloutMode = "test",
        timeout: float | None = None,
    ) -> None:
        self._resources = resources
        self._mode: RolloutMode = mode
        self._timeout = timeout
        self.outcome: BatchOutcome | None = None

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Run every task once.

        Raises:
            ConfigError: There is no dataset.
        """
        self.outcome = None
        tasks = train_dataset if val_dataset is None else val_dataset
        if tasks is None or not len(tasks):
            raise ConfigError("an evaluation needs tasks", path="val_dataset")
        store = self.get_store()
        self.outcome = await run_batch(
            store,
            tasks,
            resources=await self._choose_resources(store, llm_proxy),
            mode=self._mode,
            adapter=self.context.adapter,
            timeout=self._timeout,
            description="evaluation",
        )

    async def _choose_resources(
        self, store: LightningStore, llm_proxy: LLMProxyLike | None
    ) -> NamedResources | str | None:
        chosen = self._resources
        if chosen is None:
            latest = await store.get_latest_resources()
            chosen = self.get_initial_resources() if latest is None else latest.resources_id
        return chosen if chosen is None or isinstance(chosen, str) else add_llm(chosen, llm_proxy)
