"""Parts that every search needs: its client, its tasks, its prompts as resources in the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agl_adapters import TraceToMessages
from agl_core.adapter import Adapter
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.store import LightningStore
from agl_core.types import Dataset, NamedResources, PromptTemplate
from agl_prompt_search.chat import ChatClient

__all__ = [
    "Snapshots",
    "open_client",
    "prompt_templates",
    "require_messages",
    "require_tasks",
]


class Snapshots:
    """The resources of each candidate, stored once, on first use.

    Args:
        store: Store of the resources.
        run: Run that they belong to; a named run prefixes their ids with its name.
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
                resources = self.resources_of(version)
                if self._run.name:
                    self._ids[version] = await self._run.put_resources(version, resources)
                else:
                    stored = await self._store.update_resources(version, resources)
                    self._ids[version] = stored.resources_id
            return self._ids[version]

    async def write_back(self, version: str) -> None:
        """Make a candidate's resources the latest in the store, also from a cancelled task."""
        with anyio.CancelScope(shield=True):
            snapshot = await self.get(version)
            await self._store.update_resources(snapshot, self.resources_of(version))


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
