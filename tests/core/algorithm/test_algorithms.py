"""The algorithm contract, ``@algo`` and the helpers around a run method."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.adapter import Adapter
from agl_core.algorithm import (
    Algorithm,
    FastAlgorithm,
    LLMProxyLike,
    algo,
    batch_iter_over_dataset,
    with_llm_proxy,
    with_store,
)
from agl_core.algorithm._utils import add_llm
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.store import LightningStore
from agl_core.types import LLM, PromptTemplate
from agl_store_memory import InMemoryLightningStore


class Length(Adapter[Any, int]):
    def adapt(self, source: Any) -> int:
        return len(source)


class Proxy:
    """A proxy that records its calls."""

    def __init__(self, running: bool = False) -> None:
        self.running = running
        self.diary: list[str] = []

    def set_store(self, store: LightningStore) -> None:
        self.diary.append("store")

    def is_running(self) -> bool:
        return self.running

    async def start(self) -> None:
        self.running = True
        self.diary.append("start")

    async def stop(self) -> None:
        self.running = False
        self.diary.append("stop")

    def as_resource(self, *, model: str | None = None) -> LLM:
        assert self.running
        return LLM(endpoint="http://127.0.0.1:9/v1", model="proxied")


def test_agents_get_the_model_behind_the_proxy_unless_they_have_one() -> None:
    proxy, other = Proxy(running=True), LLM(endpoint="http://127.0.0.1:8/v1", model="own")
    assert add_llm({}, None) == {}
    assert add_llm({}, proxy) == {"llm": proxy.as_resource()}
    assert add_llm({"model": other}, proxy) == {"model": other}


def test_getters_name_the_missing_part() -> None:
    algorithm = Algorithm()
    for what in ("trainer", "store", "adapter"):
        with pytest.raises(ValueError, match=f"Algorithm has no {what}"):
            getattr(algorithm, f"get_{what}")()
    assert algorithm.get_llm_proxy() is None
    assert algorithm.get_initial_resources() is None
    with pytest.raises(NotImplementedError, match="does not define run"):
        algorithm.run()


def test_setters_and_getters() -> None:
    algorithm = Algorithm()
    algorithm.set_store(InMemoryLightningStore())
    algorithm.set_adapter(Length())
    algorithm.set_llm_proxy(Proxy())
    assert isinstance(algorithm.get_store(), InMemoryLightningStore)
    assert algorithm.get_adapter().adapt("abc") == 3
    assert isinstance(algorithm.get_llm_proxy(), Proxy)


def test_is_async_follows_run() -> None:
    class Sync(Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            return None

    class Async(FastAlgorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            return None

    assert not Sync().is_async()
    assert Async().is_async()
    assert Sync()() is None
    assert asyncio.run(Async()()) is None


def test_algo_injects_by_name() -> None:
    seen: dict[str, Any] = {}

    @algo
    async def search(
        val_dataset: Any, store: Any, *, llm_proxy: Any, adapter: Any, initial_resources: Any
    ) -> None:
        """Looks around."""
        seen.update(val_dataset=val_dataset, store=store, llm_proxy=llm_proxy)
        seen.update(adapter=adapter, initial_resources=initial_resources)

    store, prompt = InMemoryLightningStore(), PromptTemplate(template="Hi", engine="f-string")
    search.set_store(store)
    search.set_adapter(Length())
    search.set_initial_resources({"prompt": prompt})
    asyncio.run(search.run(val_dataset=[1, 2]))
    assert seen.pop("adapter").adapt("ab") == 2
    assert seen == {
        "val_dataset": [1, 2],
        "store": store,
        "llm_proxy": None,
        "initial_resources": {"prompt": prompt},
    }
    assert search.is_async()
    assert search.__doc__ == "Looks around."
    assert search.__wrapped__.__name__ == "search"  # pyright: ignore[reportAttributeAccessIssue]


def test_algo_ignores_var_arguments_and_defaults() -> None:
    @algo
    def search(*args: Any, train_dataset: Any, rounds: int = 3, **kwargs: Any) -> Any:
        return args, train_dataset, rounds, kwargs

    assert search.run([5]) == ((), [5], 3, {})
    assert not search.is_async()


def test_algo_called_directly_is_the_function() -> None:
    @algo
    def search(train_dataset: Any) -> list[Any]:
        return [train_dataset]

    assert search("anything") == ["anything"]


@pytest.mark.parametrize("name", ["train_dataset", "val_dataset"])
def test_algo_refuses_a_dataset_it_did_not_declare(name: str) -> None:
    @algo
    def search(store: Any) -> None:
        raise AssertionError("must not run")

    search.set_store(InMemoryLightningStore())
    with pytest.raises(TypeError, match=f"has no parameter '{name}'"):
        search.run(**{name: [1]})


def test_algo_names_a_parameter_it_cannot_fill() -> None:
    with pytest.raises(ConfigError, match="cannot fill the parameter 'model'"):

        @algo
        def search(store: Any, model: Any) -> None: ...


def test_algo_without_a_store_is_an_error() -> None:
    @algo
    def search(store: Any) -> None: ...

    with pytest.raises(ValueError, match="has no store"):
        search.run()


class Decorated(Algorithm):
    @with_store
    async def count(self, store: LightningStore, extra: int) -> int:
        return (await store.query_rollouts()).total + extra

    @with_llm_proxy()
    async def proxied(self, proxy: LLMProxyLike | None) -> bool | None:
        return None if proxy is None else proxy.is_running()

    @with_llm_proxy(required=True)
    async def needy(self, proxy: LLMProxyLike | None) -> None: ...

    @with_llm_proxy(auto_start=False)
    async def relaxed(self, proxy: LLMProxyLike | None) -> bool:
        assert proxy is not None
        return proxy.is_running()

    @with_llm_proxy()
    async def failing(self, proxy: LLMProxyLike | None) -> None:
        raise KeyError("inside")


async def test_with_store() -> None:
    algorithm = Decorated()
    with pytest.raises(ValueError, match="no store"):
        await algorithm.count(1)
    store = InMemoryLightningStore()
    await store.enqueue_rollout({})
    algorithm.set_store(store)
    assert await algorithm.count(extra=1) == 2


async def test_with_llm_proxy() -> None:
    algorithm = Decorated()
    assert await algorithm.proxied() is None
    with pytest.raises(ValueError, match="needs a proxy"):
        await algorithm.needy()

    ours = Proxy()
    algorithm.set_llm_proxy(ours)
    assert await algorithm.proxied() is True
    assert ours.diary == ["start", "stop"]
    with pytest.raises(KeyError):
        await algorithm.failing()
    assert ours.diary == ["start", "stop"] * 2
    assert await algorithm.relaxed() is False

    theirs = Proxy(running=True)
    algorithm.set_llm_proxy(theirs)
    assert await algorithm.proxied() is True
    assert theirs.diary == []  # not stopped: the algorithm did not start it


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_gets_a_proxy_that_runs(is_async: bool) -> None:
    def look(llm_proxy: Any) -> None:
        llm_proxy.diary.append(f"running: {llm_proxy.is_running()}")
        raise KeyError("inside")

    @algo
    async def search(llm_proxy: Any) -> None:
        if not theirs:
            await llm_proxy.start()  # as code for 0.3 does
        look(llm_proxy)

    algorithm = search if is_async else algo(look)
    proxies = [Proxy(), Proxy(running=True)]
    for proxy in proxies:
        theirs = proxy.running
        algorithm.set_llm_proxy(proxy)
        with pytest.raises(KeyError):
            # A trainer calls a plain function in a thread.
            await (algorithm.run() if is_async else asyncio.to_thread(algorithm.run))
    assert proxies[0].diary == ["start", "running: True", "stop"]
    assert proxies[1].diary == ["running: True"]  # the trainer did not start it


@given(st.integers(1, 30), st.integers(1, 40), st.integers())
def test_batches_are_exact_and_fair(items: int, size: int, seed: int) -> None:
    count = 20
    batches = list(islice(batch_iter_over_dataset(range(items), size, seed=seed), count))
    exact = min(size, items)
    assert all(len(batch) == exact == len(set(batch)) for batch in batches)
    drawn = [item for batch in batches for item in batch]
    # Each whole pass over the dataset has every item once.
    for start in range(0, len(drawn) - items + 1, items):
        assert Counter(drawn[start : start + items]) == Counter(range(items))
    assert batches == list(islice(batch_iter_over_dataset(range(items), size, seed=seed), count))


@pytest.mark.parametrize(("items", "size"), [([], 1), ([1], 0)])
def test_an_empty_dataset_has_no_batches(items: list[int], size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        batch_iter_over_dataset(items, size)


@pytest.mark.parametrize("name", ["proxy", "llm_proxy"])
def test_a_function_gets_the_proxy_by_its_name_or_that_of_0_3(name: str) -> None:
    seen: list[Any] = []

    def both(**given: Any) -> None:
        seen.append(given[name])

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)]
    both.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    algorithm = algo(both)
    running = SimpleNamespace(is_running=lambda: True)
    algorithm.set_llm_proxy(running)  # pyright: ignore[reportArgumentType]
    algorithm.run()
    assert seen == [running]
