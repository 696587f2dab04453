"""Helpers that algorithms share: decorators for their methods, and batches of a dataset."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from agl_core.errors import InvalidArgumentError
from agl_core.types import LLM, Dataset, NamedResources

if TYPE_CHECKING:
    from agl_core.algorithm._base import Algorithm
    from agl_core.store import LightningStore

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A", bound="Algorithm")


class LLMProxyLike(Protocol):
    """The part of a proxy that algorithms and trainers use."""

    def set_store(self, store: LightningStore) -> None:
        """Set where spans go; called before :meth:`start`."""
        ...

    def is_running(self) -> bool:
        """Tell whether the proxy serves."""
        ...

    async def start(self) -> None:
        """Serve; return when ready."""
        ...

    async def stop(self) -> None:
        """Stop serving."""
        ...

    def as_resource(self, *, model: str | None = None) -> LLM:
        """Return the LLM resource for agents, by default of the only model, of a running proxy."""
        ...


def add_llm(resources: NamedResources, llm_proxy: LLMProxyLike | None) -> NamedResources:
    """Return resources for agents that call their model through a proxy.

    Args:
        resources: Resources of the agents; if they contain a model, none is added.
        llm_proxy: A running proxy, or None, which adds nothing.

    Raises:
        ValueError: The proxy serves several models.
    """
    if llm_proxy is None or any(isinstance(one, LLM) for one in resources.values()):
        return resources
    return {**resources, "llm": llm_proxy.as_resource()}


def with_store(
    method: Callable[Concatenate[A, LightningStore, P], Awaitable[R]],
) -> Callable[Concatenate[A, P], Awaitable[R]]:
    """Pass the algorithm's store to a coroutine method, as the first argument after ``self``."""

    @functools.wraps(method)
    async def wrapper(self: A, *args: P.args, **kwargs: P.kwargs) -> R:
        return await method(self, self.get_store(), *args, **kwargs)

    return wrapper


def with_llm_proxy(
    required: bool = False, auto_start: bool = True
) -> Callable[
    [Callable[Concatenate[A, LLMProxyLike | None, P], Awaitable[R]]],
    Callable[Concatenate[A, P], Awaitable[R]],
]:
    """Pass the algorithm's proxy to a coroutine method, as the first argument after ``self``.

    Args:
        required: Whether a missing proxy is an error; else None is passed.
        auto_start: Whether to start a stopped proxy for the call; it is stopped afterwards.

    Raises:
        ValueError: At the call, if there is no proxy and it is required.
    """

    def decorate(
        method: Callable[Concatenate[A, LLMProxyLike | None, P], Awaitable[R]],
    ) -> Callable[Concatenate[A, P], Awaitable[R]]:
        @functools.wraps(method)
        async def wrapper(self: A, *args: P.args, **kwargs: P.kwargs) -> R:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                raise ValueError(
                    f"{type(self).__qualname__} needs a proxy; pass proxy=… to the trainer, or "
                    "write the table [proxy] in a train file"
                )
            if proxy is None or not auto_start or proxy.is_running():
                return await method(self, proxy, *args, **kwargs)
            await proxy.start()
            try:
                return await method(self, proxy, *args, **kwargs)
            finally:
                await proxy.stop()

        return wrapper

    return decorate


def batch_iter_over_dataset(
    dataset: Dataset[T], batch_size: int, *, seed: int | None = None
) -> Iterator[list[T]]:
    """Yield batches of a dataset without end; each pass has a new shuffled order.

    Every batch has exactly ``batch_size`` distinct items (all items of a smaller dataset); the
    items left at the end of a pass start the next batch.

    Args:
        dataset: Source of the items.
        batch_size: Items per batch, at least 1.
        seed: Makes the order repeatable.

    Raises:
        InvalidArgumentError: The dataset is empty or the batch size is less than 1.
    """
    if batch_size < 1 or len(dataset) == 0:
        raise InvalidArgumentError(
            f"batches of {batch_size} from {len(dataset)} items: both must be at least 1"
        )
    return _batches(dataset, min(batch_size, len(dataset)), random.Random(seed))


def _batches(dataset: Dataset[T], size: int, rng: random.Random) -> Iterator[list[T]]:
    rest: list[int] = []
    while True:
        batch, rest = rest[:size], rest[size:]
        if len(batch) < size:
            again = list(range(len(dataset)))
            rng.shuffle(again)
            taken = set(batch)
            fill = [index for index in again if index not in taken][: size - len(batch)]
            batch += fill
            used = set(fill)
            rest = [index for index in again if index not in used]
        yield [dataset[index] for index in batch]
