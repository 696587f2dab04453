"""Evaluations: passes over a dataset that update nothing, for ``agl eval`` and prompt searches."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import anyio

from agl_algorithm_kit.batch import run_requests
from agl_core.algorithm import (
    BatchOutcome,
    ComparisonOutcome,
    FastAlgorithm,
    LLMProxyLike,
    RolloutOutcome,
    add_llm,
    with_llm_proxy,
)
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.store import each_item
from agl_core.types import (
    LLM,
    AttemptedRollout,
    Checkpoint,
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    ProxyLLM,
    Resource,
    Rollout,
    RolloutMode,
)

if TYPE_CHECKING:
    from agl_core.store import LightningStore


logger = logging.getLogger(__name__)

Found = TypeVar("Found")

_TRIED: Final = "eval-"
"""Prefix of the names of the snapshots that evaluations store; no training made them."""
_PAGE: Final = 100
"""Snapshots per query: the one looked for is mostly among the newest."""
_CONNECT_TIMEOUT: Final = 5.0
"""Longest wait for a proxy to accept a connection, in seconds: it takes milliseconds if it runs."""


class _Pass(FastAlgorithm, Generic[Found]):
    """Runs the tasks of the validation dataset, or else of the training dataset.

    The snapshots that it stores never become the latest: an evaluation changes nothing for others.
    """

    def __init__(self, mode: RolloutMode, attempts: int, timeout: float | None) -> None:
        if attempts < 1:
            raise InvalidArgumentError(f"a task needs at least one attempt, not {attempts}")
        self._mode: RolloutMode = mode
        self._attempts = attempts
        self._timeout = timeout
        self.outcome: Found | None = None

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Run every task.

        Raises:
            ConfigError: There is no dataset, or the store does not have the resources.
        """
        self.outcome = None
        tasks = train_dataset if val_dataset is None else val_dataset
        if tasks is None or not len(tasks):
            raise ConfigError("an evaluation needs tasks", path="val_dataset")
        self.outcome = await self._measure(tasks, llm_proxy)

    async def _measure(self, tasks: Dataset[Any], llm_proxy: LLMProxyLike | None) -> Found:
        """Run the tasks with the chosen resources; return what was found."""
        raise NotImplementedError

    async def _roll_out(
        self,
        tasks: Dataset[Any],
        chosen: Mapping[str, NamedResources | str | None],
        llm_proxy: LLMProxyLike | None,
        name: str,
        is_enough: Callable[[Sequence[RolloutOutcome]], bool] | None = None,
    ) -> list[BatchOutcome]:
        """Run each task several times with each of the chosen resources; return the outcomes.

        Args:
            tasks: The tasks.
            chosen: The resources, by their name in the run.
            llm_proxy: The proxy through which agents call their models.
            name: Name of the batch.
            is_enough: As for :class:`Evaluation`.

        Raises:
            ConfigError: An earlier process of the run began with other resources or tasks.
        """
        plan = self._plan(len(tasks), len(chosen), name)
        before: list[set[str | None]] = [set() for _ in chosen]
        enqueued = await self.get_run().enqueued(name)
        old = {index: rollout for index, rollout in enqueued.items() if index < len(plan)}
        for index, rollout in old.items():
            before[plan[index][0]].add(rollout.resources_id)
        snapshots = [
            await self._store_resources(one, llm_proxy, key, known)
            for (key, one), known in zip(chosen.items(), before, strict=True)
        ]
        await self._queue_again(old.values())
        is_spent = False

        def stop(found: Sequence[RolloutOutcome]) -> bool:
            nonlocal is_spent
            # Called also when the budget is spent, to count what still runs.
            is_spent = (is_enough is not None and is_enough(found)) or is_spent
            return is_spent

        batch = await run_requests(
            self.get_store(),
            [
                EnqueueRolloutRequest(
                    input=tasks[task], mode=self._mode, resources_id=snapshots[arm]
                )
                for arm, task in plan
            ],
            adapter=self.context.adapter,
            timeout=self._timeout,
            description="evaluation",
            run=self.get_run(),
            name=name,
            is_enough=stop,
        )
        outcomes: list[list[RolloutOutcome]] = [[] for _ in snapshots]
        for (arm, _), outcome in zip(plan, batch, strict=True):
            # A rollout that was cancelled in the queue, because the budget is spent, says nothing
            # about the agent.
            if outcome.started or not is_spent:
                outcomes[arm].append(outcome)
        return [
            replace(batch, outcomes=found, resources_id=resources_id)
            for found, resources_id in zip(outcomes, snapshots, strict=True)
        ]

    async def _queue_again(self, rollouts: Iterable[Rollout]) -> None:
        """Enqueue the rollouts that an earlier process of the run cancelled before they began.

        Its budget or time had ended. That says nothing about the agent, and this process may have
        more.
        """
        for rollout in rollouts:
            if rollout.status == "cancelled" and not isinstance(rollout, AttemptedRollout):
                await self.get_store().update_rollout(rollout.rollout_id, status="queuing")

    def _plan(self, tasks: int, arms: int, name: str) -> list[tuple[int, int]]:
        """Return the snapshot and the task of each rollout, as numbers.

        All tasks are tried once before any is tried again, so an interrupted pass has tried them
        about equally often. The order of the snapshots is random for each task: if a server slows
        down, it slows down all snapshots alike.
        """
        chance = random.Random(name)
        plan: list[tuple[int, int]] = []
        for _ in range(self._attempts):
            for task in range(tasks):
                order = list(range(arms))
                chance.shuffle(order)
                plan += [(arm, task) for arm in order]
        return plan

    async def _store_resources(
        self,
        chosen: NamedResources | str | None,
        llm_proxy: LLMProxyLike | None,
        name: str,
        known: Collection[str | None],
    ) -> str:
        """Return the id of a snapshot with the chosen resources, reached through the proxy.

        Args:
            chosen: The resources, or the id of a snapshot.
            llm_proxy: The proxy.
            name: Name of the snapshot in the run.
            known: The snapshots that earlier processes of the run used for them.
        """
        store = self.get_store()
        if chosen is None:
            chosen = await self._by_default(store)
        if not isinstance(chosen, str):
            ready = add_llm(chosen, llm_proxy)
            await self._check_same(ready, known)
        else:
            stored = await store.get_resources_by_id(chosen)
            if stored is None:
                raise ConfigError(f"the store has no resources {chosen!r}", path="resources")
            # The proxy of the run that stored the snapshot may have listened on another port.
            ready = await _through(llm_proxy, chosen, stored.resources)
            await self._check_same(ready, known)
            if ready == stored.resources:
                return chosen
        return await self.get_run().put_resources(f"{_TRIED}{name}", ready, latest=False)

    async def _check_same(self, ready: NamedResources, known: Collection[str | None]) -> None:
        """Check that the rollouts of earlier processes ran with the same resources.

        Raises:
            ConfigError: They did not, so one score would mix two prompts.
        """
        wanted = _content(ready)
        for resources_id in known:
            stored = resources_id and await self.get_store().get_resources_by_id(resources_id)
            held = _content(stored.resources) if stored else {}
            other = sorted(key for key in {*wanted, *held} if wanted.get(key) != held.get(key))
            if other:
                raise ConfigError(
                    f"the run {self.get_run().name!r} began with the resources {resources_id}, "
                    f"which differ in {', '.join(other)}; go on with those, or choose another run "
                    "name",
                    path="resources",
                )

    async def _by_default(self, store: LightningStore) -> NamedResources | str:
        """Return the initial resources if the user edited them, else the id of the latest snapshot.

        They are edited if no snapshot holds them, or if an evaluation stored them after the latest
        snapshot that a training made.
        """
        initial = self.get_initial_resources()
        newest: str | None = None
        seen = not initial
        async for snapshot in each_item(
            store.query_resources,
            "resources_id",
            page_size=_PAGE,
            sort_by="update_time",
            sort_order="desc",
        ):
            held = snapshot.resources
            marks = [one.state for one in held.values() if isinstance(one, Checkpoint)]
            # With a proxy, a snapshot has its model, too.
            same = all(held.get(name) == one for name, one in (initial or {}).items())
            if any(_is_tried_by_evaluation(state) for state in marks):
                if initial and same and newest is None:
                    return initial
            elif not marks:  # a run's own record and a search's candidates have marks
                newest = newest or snapshot.resources_id
            seen = seen or same
            if newest and seen:
                break
        if newest is None or (initial and not seen):
            if newest is not None:
                logger.info("The resources differ from those in the store, so they are evaluated")
            return initial or {}
        return newest


class Evaluation(_Pass[BatchOutcome]):
    """Measures an agent on the validation dataset, or else on the training dataset.

    Args:
        resources: Resources of the rollouts, or the id of a stored snapshot. By default the initial
            resources if the store has not seen them yet, because the user edited them; else the
            latest snapshot, which a training made of them, or none. Their models are reached
            through the trainer's proxy; its model is added to resources without a model.
        mode: Mode of the rollouts.
        attempts: Rollouts of each task.
        timeout: Seconds for the whole dataset; rollouts that are still open then are cancelled.
        is_enough: Called with new outcomes; once it returns True, no further rollouts begin, and
            those that did not begin are left out.

    Attributes:
        outcome: An outcome per rollout; None until the run is over.
    """

    def __init__(
        self,
        *,
        resources: NamedResources | str | None = None,
        mode: RolloutMode = "test",
        attempts: int = 1,
        timeout: float | None = None,
        is_enough: Callable[[Sequence[RolloutOutcome]], bool] | None = None,
    ) -> None:
        super().__init__(mode, attempts, timeout)
        self._resources = resources
        self._is_enough = is_enough

    async def _measure(self, tasks: Dataset[Any], llm_proxy: LLMProxyLike | None) -> BatchOutcome:
        chosen = {"resources": self._resources}
        (outcome,) = await self._roll_out(tasks, chosen, llm_proxy, "eval", self._is_enough)
        return outcome


class Comparison(_Pass[ComparisonOutcome]):
    """Measures two snapshots on the same tasks at the same time: a drift affects both alike.

    Args:
        before: Resources, or the id of a stored snapshot; None as for :class:`Evaluation`.
        after: The same, to compare with.
        mode: Mode of the rollouts.
        attempts: Rollouts of each task with each snapshot.
        timeout: Seconds for the whole dataset; rollouts that are still open then are cancelled.

    Attributes:
        outcome: The outcomes; None until the run is over.
    """

    def __init__(
        self,
        before: NamedResources | str | None = None,
        after: NamedResources | str | None = None,
        *,
        mode: RolloutMode = "test",
        attempts: int = 1,
        timeout: float | None = None,
    ) -> None:
        super().__init__(mode, attempts, timeout)
        self._resources = {"before": before, "after": after}

    async def _measure(
        self, tasks: Dataset[Any], llm_proxy: LLMProxyLike | None
    ) -> ComparisonOutcome:
        outcomes = await self._roll_out(tasks, self._resources, llm_proxy, "compare")
        return ComparisonOutcome(*outcomes)


def _content(resources: Mapping[str, Resource]) -> dict[str, Any]:
    """Return what agents receive, as JSON values, to compare.

    The address of a model and its key are left out: a resumed run serves it on another port.
    """
    return {
        name: one.model_dump(
            mode="json", exclude={"endpoint", "api_key"} if isinstance(one, LLM) else None
        )
        for name, one in resources.items()
        if not isinstance(one, Checkpoint)
    }


def _is_tried_by_evaluation(state: Any) -> bool:
    """Return whether the state of a snapshot's checkpoint says that an evaluation stored it."""
    return isinstance(state, dict) and str(state.get("tried", "")).startswith(_TRIED)  # pyright: ignore


async def _through(
    llm_proxy: LLMProxyLike | None, resources_id: str, resources: Mapping[str, Resource]
) -> NamedResources:
    """Return stored resources whose models are reached through a proxy, if there is one."""
    if llm_proxy is None:
        await _check_endpoints(resources_id, resources)
        return dict(resources)
    ready = {name: _behind(llm_proxy, one) for name, one in resources.items()}
    return add_llm(ready, llm_proxy)


async def _check_endpoints(resources_id: str, resources: Mapping[str, Resource]) -> None:
    """Check that the proxies in a stored snapshot still accept connections.

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
