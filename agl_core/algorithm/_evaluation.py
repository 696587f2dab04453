"""One pass over a dataset that updates nothing: what ``agl eval`` and ``Trainer.evaluate`` run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from agl_core.algorithm._base import FastAlgorithm
from agl_core.algorithm._batch import BatchOutcome, run_batch
from agl_core.algorithm._utils import LLMProxyLike, add_llm, with_llm_proxy
from agl_core.errors import ConfigError
from agl_core.ids import generate_id
from agl_core.types import Checkpoint, Dataset, NamedResources, ProxyLLM, Resource, RolloutMode

if TYPE_CHECKING:
    from agl_core.store import LightningStore


logger = logging.getLogger(__name__)

_EDITED: Final = "eval-"
"""Start of the ids of initial resources that evaluations store; no training made them."""
_PAGE: Final = 100
_CONNECT_TIMEOUT: Final = 5.0


class Evaluation(FastAlgorithm):
    """Measures an agent on the validation dataset, or else on the training dataset.

    Args:
        resources: Resources of the rollouts, or the id of a stored snapshot. By default the initial
            resources if the store has not seen them yet, because the user edited them; else the
            latest snapshot, which a training made of them, or none. Their models are reached
            through the trainer's proxy; its model is added to resources without a model.
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
        resources = await self._choose_resources(store, llm_proxy)
        if not isinstance(resources, str) and self._resources is None:
            name = f"{_EDITED}{generate_id(12)}"
            resources = (await store.update_resources(name, resources)).resources_id
        self.outcome = await run_batch(
            store,
            tasks,
            resources=resources,
            mode=self._mode,
            adapter=self.context.adapter,
            timeout=self._timeout,
            description="evaluation",
            run=self.get_run(),
        )

    async def _choose_resources(
        self, store: LightningStore, llm_proxy: LLMProxyLike | None
    ) -> NamedResources | str:
        chosen = self._resources
        if chosen is None:
            chosen = await self._by_default(store)
        if not isinstance(chosen, str):
            return add_llm(chosen, llm_proxy)
        stored = await store.get_resources_by_id(chosen)
        if stored is None:
            return chosen
        if llm_proxy is None:
            await _check_endpoints(chosen, stored.resources)
            return chosen
        # The proxy of the run that stored the snapshot may have listened on another port.
        ready = {name: _behind(llm_proxy, one) for name, one in stored.resources.items()}
        ready = add_llm(ready, llm_proxy)
        return chosen if ready == stored.resources else ready

    async def _by_default(self, store: LightningStore) -> NamedResources | str:
        """Return the initial resources if the user edited them, else the id of the latest snapshot.

        They are edited if no snapshot holds them, or if an evaluation stored them since the latest
        of the others, which a training made.
        """
        initial = self.get_initial_resources()
        newest: str | None = None
        seen = not initial
        offset, total = 0, 1
        while offset < total and not (newest and seen):
            page = await store.query_resources(
                sort_by="update_time", sort_order="desc", limit=_PAGE, offset=offset
            )
            offset, total = offset + _PAGE, page.total
            for snapshot in page:
                held = snapshot.resources
                if any(isinstance(one, Checkpoint) for one in held.values()):
                    continue  # a run's own record, which agents never receive
                # With a proxy, a snapshot has its model, too.
                same = all(held.get(name) == one for name, one in (initial or {}).items())
                if snapshot.resources_id.startswith(_EDITED):
                    if initial and same and newest is None:
                        return initial
                else:
                    newest = newest or snapshot.resources_id
                seen = seen or same
        if newest is None or (initial and not seen):
            if newest is not None:
                logger.info("The resources differ from those in the store, so they are evaluated")
            return initial or {}
        return newest


async def _check_endpoints(resources_id: str, resources: NamedResources) -> None:
    """Check that the proxies answer through which a stored snapshot calls its models.

    A proxy ends with its run. Agents would wait for it, with all the retries of their clients.

    Raises:
        ConfigError: Nothing listens there.
    """
    for name, one in resources.items():
        if not isinstance(one, ProxyLLM):
            continue
        address = urlsplit(one.endpoint)
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            with anyio.fail_after(_CONNECT_TIMEOUT):
                await (await anyio.connect_tcp(address.hostname or "", port)).aclose()
        except OSError as error:  # TimeoutError is one
            raise ConfigError(
                f"the model {name!r} of {resources_id} was behind a proxy at {one.endpoint}, which "
                "ended with its run; serve the trained model (llm_server and proxy), or give other "
                "resources",
                path="resources",
            ) from error


def _behind(llm_proxy: LLMProxyLike, resource: Resource) -> Resource:
    if not isinstance(resource, ProxyLLM):
        return resource
    endpoint = llm_proxy.as_resource(model=resource.model).get_base_url()
    return resource.model_copy(update={"endpoint": endpoint})
