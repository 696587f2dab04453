"""One pass over a dataset that updates nothing: what ``agl eval`` and ``Trainer.evaluate`` run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.algorithm._base import FastAlgorithm
from agl_core.algorithm._batch import BatchOutcome, run_batch
from agl_core.algorithm._utils import LLMProxyLike, add_llm, with_llm_proxy
from agl_core.errors import ConfigError
from agl_core.types import Dataset, NamedResources, ProxyLLM, Resource, RolloutMode

if TYPE_CHECKING:
    from agl_core.store import LightningStore


class Evaluation(FastAlgorithm):
    """Measures an agent on the validation dataset, or else on the training dataset.

    Args:
        resources: Resources of the rollouts, or the id of a stored snapshot; by default the latest
            snapshot in the store, or else the initial resources, or else none. Their models are
            reached through the trainer's proxy; its model is added to resources without a model.
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
    ) -> NamedResources | str:
        chosen = self._resources
        if chosen is None:
            latest = await store.get_latest_resources()
            chosen = latest.resources_id if latest else self.get_initial_resources() or {}
        if not isinstance(chosen, str):
            return add_llm(chosen, llm_proxy)
        stored = await store.get_resources_by_id(chosen)
        if stored is None or llm_proxy is None:
            return chosen
        # The proxy of the run that stored the snapshot may have listened on another port.
        ready = {name: _behind(llm_proxy, one) for name, one in stored.resources.items()}
        ready = add_llm(ready, llm_proxy)
        return chosen if ready == stored.resources else ready


def _behind(llm_proxy: LLMProxyLike, resource: Resource) -> Resource:
    if not isinstance(resource, ProxyLLM):
        return resource
    endpoint = llm_proxy.as_resource(model=resource.model).get_base_url()
    return resource.model_copy(update={"endpoint": endpoint})
