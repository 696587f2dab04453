"""``@algo``: an algorithm as a function whose parameters are filled by name."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from agl_core.algorithm._base import Algorithm
from agl_core.algorithm._utils import LLMProxyLike
from agl_core.errors import ConfigError
from agl_core.types import Dataset

_INJECTED: Final[dict[str, Callable[[Algorithm], Any]]] = {
    "store": Algorithm.get_store,
    "adapter": Algorithm.get_adapter,
    "proxy": Algorithm.get_llm_proxy,
    "llm_proxy": Algorithm.get_llm_proxy,  # its name in agent-lightning 0.3
    "llm_server": Algorithm.get_llm_server,
    "initial_resources": Algorithm.get_initial_resources,
    "run": Algorithm.get_run,
}
_DATASETS: Final = ("train_dataset", "val_dataset")


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Make an algorithm of a function, sync or async.

    Its parameters are filled by name: ``store``, ``adapter``, ``proxy`` (or ``llm_proxy``),
    ``llm_server``, ``initial_resources``, ``run``, ``train_dataset``, ``val_dataset``; any of them,
    in any order. A proxy that it names runs while the function does::

        @algo
        async def search(*, store, train_dataset, val_dataset):
            ...

        Trainer(algorithm=search).fit(agent, train_dataset, val_dataset=held_out)

    Calling the result calls the original function.

    Raises:
        ConfigError: A parameter has another name and no default.
    """
    return FunctionalAlgorithm(function)


class FunctionalAlgorithm(Algorithm):
    """The algorithm that :func:`algo` makes.

    Args:
        function: The function; see :func:`algo`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)
        self._wanted: list[str] = []
        unknown: list[str] = []
        for p in inspect.signature(function).parameters.values():
            if p.name in (*_INJECTED, *_DATASETS):
                self._wanted.append(p.name)
            elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                unknown.append(p.name)
        if unknown:
            raise ConfigError(
                f"@algo cannot fill the parameter {unknown[0]!r} of {function.__qualname__}; "
                f"it fills {', '.join((*_INJECTED, *_DATASETS))}"
            )

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._function)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Any:
        """Call the function with the arguments that its parameters name.

        A stopped proxy that it names runs for the call.

        Raises:
            TypeError: A dataset is given that the function has no parameter for.
        """
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        for name, dataset in datasets.items():
            if dataset is not None and name not in self._wanted:
                raise TypeError(
                    f"{self._function.__qualname__} got a {name} but has no parameter {name!r}"
                )
        arguments = {name: get(self) for name, get in _INJECTED.items() if name in self._wanted}
        arguments.update({k: v for k, v in datasets.items() if k in self._wanted})
        names = [name for name in ("proxy", "llm_proxy") if name in arguments]
        proxy: LLMProxyLike | None = arguments[names[0]] if names else None
        if proxy is None or proxy.is_running():
            return self._function(**arguments)
        arguments.update(dict.fromkeys(names, _StartedProxy(proxy)))
        if self.is_async():
            return self._run_async(proxy, arguments)
        asyncio.run(proxy.start())
        try:
            return self._function(**arguments)
        finally:
            if proxy.is_running():
                asyncio.run(proxy.stop())

    async def _run_async(self, proxy: LLMProxyLike, arguments: dict[str, Any]) -> Any:
        await proxy.start()
        try:
            return await self._function(**arguments)
        finally:
            if proxy.is_running():
                await proxy.stop()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _StartedProxy:
    """A proxy that runs for a function; functions written for 0.3 start it themselves."""

    def __init__(self, proxy: LLMProxyLike) -> None:
        self._proxy = proxy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)

    async def start(self) -> None:
        if not self._proxy.is_running():
            await self._proxy.start()
