"""Parts that every search needs: its client, its tasks, its prompts as resources in the store."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from pydantic import BaseModel
from pydantic_core import to_json

from agl_adapters import TraceToMessages
from agl_core.adapter import Adapter
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, MissingDependencyError, RunFailedError
from agl_core.store import LightningStore
from agl_core.types import Dataset, NamedResources, PromptTemplate
from agl_prompt_search.budget import Budget, Spending
from agl_prompt_search.chat import ChatClient
from agl_prompt_search.model_calls import MeteredModel
from agl_prompt_search.state import SearchState

__all__ = [
    "Snapshots",
    "check_client",
    "fingerprint",
    "limits_of",
    "open_client",
    "prompt_templates",
    "require_messages",
    "require_tasks",
    "require_use",
]


logger = logging.getLogger(__name__)

_HASHED: Final = 100  # tasks at least: reading all of a big dataset would take long
_LIMITS: Final = {"max_rollouts", "max_calls", "max_tokens", "max_cost"}
_ALIKE: Final = 3  # prompts with equal rewards that are more than a coincidence


class Snapshots:
    """The resources of each candidate, stored once, on first use.

    A candidate never is the latest snapshot: others that share the store, such as agents that serve
    requests, receive the latest one. The best candidate becomes it at the end of the search.

    Args:
        store: Store of the resources.
        run: Run that they belong to; it prefixes their ids.
        resources_of: Returns the resources of a version.

    Attributes:
        resources_of: The same.
    """

    def __init__(
        self,
        store: LightningStore,
        run: Run,
        resources_of: Callable[[str], NamedResources],
    ) -> None:
        self._store = store
        self._run = run
        self.resources_of = resources_of
        self._ids: dict[str, str] = {}
        self._lock = anyio.Lock()

    async def get(self, version: str) -> str:
        """Return the id of a candidate's resources."""
        async with self._lock:
            if version not in self._ids:
                self._ids[version] = await self._run.put_resources(
                    version, self.resources_of(version), latest=False
                )
            return self._ids[version]

    async def write_back(self, version: str) -> None:
        """Make a candidate the latest snapshot and the result, also from a cancelled task."""
        with anyio.CancelScope(shield=True):
            snapshot = await self.get(version)
            await self._store.update_resources(snapshot, self.resources_of(version))
            await self._run.set_result(snapshot)


def require_use(algorithm: str, state: SearchState[Any]) -> None:
    """Check that a finished search could do something: a search in vain must not look like one.

    Raises:
        RunFailedError: The models gave no usable prompt at all or stopped answering, no rollout
            ended in time, or none had a reward.
    """
    proposed = [candidate for candidate in state.history if candidate.round]
    if proposed and all(candidate.unusable for candidate in proposed):
        reasons = Counter(candidate.rejected for candidate in proposed)
        what, count = reasons.most_common(1)[0]
        raise RunFailedError(
            f"{algorithm} got no usable prompt in {len(proposed)} proposals; {count} times: {what}"
        )
    if state.unanswered:  # a finished run would not go on
        raise RunFailedError(
            f"{algorithm}: {state.stopped}; the best prompt so far is kept, and a run with a name "
            "goes on when it is resumed"
        )
    _warn_if_alike(algorithm, state)
    if any(candidate.earned for candidate in state.history):
        if state.unrated:
            logger.warning(
                "%s: %d rollouts succeeded without a reward and count as failed; does the agent "
                "return a number, or call emit_reward, on every path?",
                algorithm,
                state.unrated,
            )
        return
    if state.unrated:
        raise RunFailedError(
            f"{algorithm}: the agent gave no reward in any rollout; it returns a number, or calls "
            "emit_reward"
        )
    if not state.crashed and any(candidate.failed for candidate in state.history):
        raise RunFailedError(f"{algorithm}: no rollout of the agent ended in time")


def limits_of(config: BaseModel, run: Run) -> dict[str, Any]:
    """Return the options that may stop a search, as they are saved in its state.

    Args:
        config: Options of the algorithm.
        run: Run whose declared range of rewards says which tasks are solved.
    """
    declared = run.reward_range
    return {
        **config.model_dump(include=_LIMITS),
        "reward_range": None if declared is None else list(declared),
    }


def _warn_if_alike(algorithm: str, state: SearchState[Any]) -> None:
    """Warn if every prompt got the same rewards: the agent probably does not use it."""
    measured = [one for one in state.history if one.rewards]
    known: dict[int, float] = {}
    for candidate in measured:
        for row, reward in candidate.rewards.items():
            if known.setdefault(row, reward) != reward:
                return
    if len(measured) >= _ALIKE and not state.solved:
        logger.warning(
            "%s: all %d prompts got the same rewards on every validation task; does the agent use "
            "the prompt among its resources?",
            algorithm,
            len(measured),
        )


def fingerprint(dataset: Dataset[Any]) -> str:
    """Return a text that differs for other tasks: their number, and a hash of 100 to 199 of them.

    Of fewer than 200 tasks it is the hash of all. It is saved, so it must stay the same.
    """
    places = range(0, len(dataset), max(1, len(dataset) // _HASHED))
    tasks = [dataset[place] for place in places]
    digest = hashlib.sha256(to_json(tasks, fallback=repr, inf_nan_mode="constants"))
    return f"{len(dataset)}, {digest.hexdigest()[:12]}"


@asynccontextmanager
async def open_client(client: ChatClient | None) -> AsyncGenerator[ChatClient]:
    """Yield the given client, or one made from ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL``.

    Raises:
        ConfigError: No client is given and ``OPENAI_API_KEY`` is not set.
        MissingDependencyError: No client is given and the package ``openai`` is not installed.
    """
    if client is not None:
        yield client
        return
    try:
        from openai import AsyncOpenAI, OpenAIError
    except ImportError as error:
        raise MissingDependencyError("a search without a client", pip="openai") from error
    try:
        default_client = AsyncOpenAI()
    except OpenAIError as error:
        raise ConfigError(
            f"set OPENAI_API_KEY (and OPENAI_BASE_URL), or pass a client: {error}",
            path="algorithm.async_openai_client",
        ) from error
    async with default_client:
        yield default_client


async def check_client(client: ChatClient | None, model: str) -> None:
    """Check that a search can call its model, as far as that costs nothing.

    Args:
        client: The client that the user gave; None: one is made from the environment.
        model: Name of the model.

    Raises:
        ConfigError: The key is missing, or the endpoint refuses it.
        MissingDependencyError: No client is given and the package ``openai`` is not installed.
    """
    async with open_client(client) as found:
        metered = MeteredModel(found, Budget(), Spending(), temperature=1.0, timeout=10.0)
        await metered.check_key(model)


def require_messages(algorithm: str, adapter: Adapter[Any, Any]) -> TraceToMessages:
    """Return the adapter if it makes conversations.

    Raises:
        ValueError: It is another adapter.
    """
    if not isinstance(adapter, TraceToMessages):
        raise ValueError(
            f'{algorithm} reads conversations: give the trainer adapter="messages", '
            f"not a {type(adapter).__qualname__}"
        )
    return adapter


def require_tasks(algorithm: str, name: str, dataset: Dataset[Any] | None) -> Dataset[Any]:
    """Return the dataset if it has tasks.

    Raises:
        ValueError: The dataset is missing or empty.
    """
    if dataset is None or not len(dataset):
        raise ValueError(f"{algorithm} needs tasks in {name}")
    return dataset


def prompt_templates(algorithm: str, resources: NamedResources) -> Mapping[str, PromptTemplate]:
    """Return the prompt templates among the resources, in order.

    Raises:
        ValueError: The resources hold no prompt template.
    """
    found = {k: it for k, it in resources.items() if isinstance(it, PromptTemplate)}
    if not found:
        raise ValueError(f"{algorithm} needs a PromptTemplate among the initial resources")
    return found
