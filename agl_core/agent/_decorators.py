"""Agents written as functions.

::

    @rollout
    def math_agent(task: dict[str, str], llm: LLM) -> float:
        answer = solve(task["question"], OpenAI(base_url=llm.endpoint, api_key=llm.api_key))
        return 1.0 if answer == task["answer"] else 0.0

Arguments are injected by the *names* of the function's parameters: ``task`` first, then any of
``llm``, ``prompt_template`` and ``rollout``. The function may be sync or async. An agent that asks
for none of them runs without resources. A parameter with a default is left out where there is no
resource for it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, overload

from agl_core.agent._base import LitAgent
from agl_core.errors import AgentSignatureError
from agl_core.types import LLM, AttemptedRollout, PromptTemplate, ProxyLLM, Resource

if TYPE_CHECKING:
    from agl_core.types import NamedResources, Rollout, RolloutRawResult

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Found = TypeVar("Found", bound=Resource)

_INJECTED: Final[Mapping[str, type[Resource] | None]] = {
    "llm": LLM,
    "prompt_template": PromptTemplate,
    "rollout": None,
}
"""The kind of the resource that a parameter of this name gets; None: the rollout itself."""


@overload
def llm_rollout(func: Callable[P, R], /) -> FunctionalLitAgent[P, R]: ...
@overload
def llm_rollout(
    *,
    strip_proxy: bool = True,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def llm_rollout(
    func: Callable[P, R] | None = None,
    /,
    *,
    strip_proxy: bool = True,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> FunctionalLitAgent[P, R] | Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]:
    """Make an agent of ``func(task, llm, …)``.

    Args:
        func: The function, sync or async.
        strip_proxy: Give the function a plain :class:`~agl_core.types.LLM` whose endpoint files its
            calls under the attempt; False passes a :class:`~agl_core.types.ProxyLLM` unchanged.
        concurrent: See :func:`rollout`.
        repeatable: See :func:`rollout`.
        reward_range: See :func:`rollout`.

    Raises:
        AgentSignatureError: The function's parameters are not those above (a ``ValueError``).
    """
    agent_of = functools.partial(
        _agent_of,
        required="llm",
        strip_proxy=strip_proxy,
        concurrent=concurrent,
        repeatable=repeatable,
        reward_range=reward_range,
    )
    return agent_of if func is None else agent_of(func)


@overload
def prompt_rollout(func: Callable[P, R], /) -> FunctionalLitAgent[P, R]: ...
@overload
def prompt_rollout(
    *,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def prompt_rollout(
    func: Callable[P, R] | None = None,
    /,
    *,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> FunctionalLitAgent[P, R] | Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]:
    """Make an agent of ``func(task, prompt_template, …)``; options as :func:`rollout`.

    Raises:
        AgentSignatureError: The function's parameters are not those above (a ``ValueError``).
    """
    agent_of = functools.partial(
        _agent_of,
        required="prompt_template",
        concurrent=concurrent,
        repeatable=repeatable,
        reward_range=reward_range,
    )
    return agent_of if func is None else agent_of(func)


@overload
def rollout(func: Callable[P, R], /) -> FunctionalLitAgent[P, R]: ...
@overload
def rollout(
    *,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]: ...
def rollout(
    func: Callable[P, R] | None = None,
    /,
    *,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> FunctionalLitAgent[P, R] | Callable[[Callable[P, R]], FunctionalLitAgent[P, R]]:
    """Make an agent of a function of ``task``, and of ``llm``, ``prompt_template`` and ``rollout``.

    Args:
        func: The function, sync or async.
        concurrent: Whether a runner may run several rollouts at a time; see
            :attr:`~agl_core.agent.LitAgent.concurrent`.
        repeatable: Whether a task may run again after a failure of the proxy or the store; see
            :attr:`~agl_core.agent.LitAgent.repeatable`.
        reward_range: Lowest and highest possible reward; see
            :attr:`~agl_core.agent.LitAgent.reward_range`.

    Raises:
        AgentSignatureError: The function needs a parameter that is not injected.
    """
    agent_of = functools.partial(
        _agent_of, concurrent=concurrent, repeatable=repeatable, reward_range=reward_range
    )
    return agent_of if func is None else agent_of(func)


class FunctionalLitAgent(LitAgent[Any], Generic[P, R]):
    """An agent around a function; calling it calls the function.

    It carries the function's name, docstring and signature. A module-level one pickles by
    reference; any other (defined in ``__main__``, a notebook, another function) needs cloudpickle.

    Args:
        func: The function; see the module's docstring for its parameters.
        strip_proxy: See :func:`llm_rollout`.

    Raises:
        AgentSignatureError: The function cannot be called as an agent.
    """

    def __init__(self, func: Callable[P, R], *, strip_proxy: bool = True) -> None:
        functools.update_wrapper(self, func)
        self._func = func
        self._name = str(getattr(func, "__qualname__", repr(func)))
        self._is_async = inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(
            getattr(func, "__call__", None)  # noqa: B004 - an object with `async def __call__`
        )
        # An object with ``__call__`` may declare them on its class.
        self.concurrent = getattr(func, "concurrent", False) is True
        self.repeatable = getattr(func, "repeatable", True) is not False
        self._strip_proxy = strip_proxy
        self._injected = _check_parameters(func, self._name)
        self._warned: set[type[Resource]] = set()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self._name}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        module = getattr(self, "__module__", None)
        found: Any = sys.modules.get(module) if module and module != "__main__" else None
        for part in self._name.split("."):
            found = getattr(found, part, None)
        return self._name if found is self else super().__reduce_ex__(protocol)

    def is_async(self) -> bool:
        return self._is_async

    def check_signature(self) -> None:
        """Do nothing: the constructor has checked the function's parameters."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutRawResult:
        """Call the function with the arguments that its parameters name.

        Raises:
            RuntimeError: The function is async.
            ValueError: A resource that it asks for is not there.
        """
        if self._is_async:
            raise RuntimeError(f"{self._name} is async; call rollout_async")
        return self._call(task, resources, rollout)

    async def rollout_async(
        self, task: Any, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        """Await the function with the arguments that its parameters name.

        Raises:
            RuntimeError: The function is not async.
            ValueError: A resource that it asks for is not there.
        """
        if not self._is_async:
            raise RuntimeError(f"{self._name} is not async; call rollout")
        return await self._call(task, resources, rollout)

    def _call(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        arguments: dict[str, Any] = {}
        for name, is_optional in self._injected.items():
            kind = _INJECTED[name]
            if kind is None:
                arguments[name] = rollout
            elif is_optional and not _has(kind, resources):
                continue
            elif kind is LLM:
                arguments[name] = self._llm(resources, rollout)
            else:
                arguments[name] = self._first(kind, resources)
        func: Callable[..., Any] = self._func
        return func(task, **arguments)

    def _llm(self, resources: NamedResources, rollout: Rollout) -> LLM:
        llm = self._first(LLM, resources)
        if not self._strip_proxy or not isinstance(llm, ProxyLLM):
            return llm
        if not isinstance(rollout, AttemptedRollout):
            raise ValueError(
                f"{self._name} needs a rollout with its attempt to file the LLM's calls under; "
                "pass an AttemptedRollout, or decorate with llm_rollout(strip_proxy=False)"
            )
        return llm.with_attempted_rollout(rollout)

    def _first(self, kind: type[Found], resources: NamedResources) -> Found:
        found = {name: value for name, value in resources.items() if isinstance(value, kind)}
        if not found:
            raise ValueError(
                f"{self._name} asks for a resource of type {kind.__name__}, and there is none "
                f"among the resources {_listed(resources)}"
            )
        chosen = next(iter(found))
        if len(found) > 1 and kind not in self._warned:
            self._warned.add(kind)
            logger.warning(
                "%s: several resources are of type %s (%s); it gets the first, %r",
                self._name,
                kind.__name__,
                _listed(found),
                chosen,
            )
        return found[chosen]


def _agent_of(
    func: Callable[P, R],
    *,
    required: str = "",
    strip_proxy: bool = True,
    concurrent: bool = False,
    repeatable: bool = True,
    reward_range: tuple[float, float] | None = None,
) -> FunctionalLitAgent[P, R]:
    if not callable(func):
        raise TypeError(f"an agent is made of a function, not of {func!r}")
    if required and required not in inspect.signature(func).parameters:
        _refuse(func, str(getattr(func, "__qualname__", func)), f"has no {required}")
    agent = FunctionalLitAgent(func, strip_proxy=strip_proxy)
    agent.concurrent = concurrent or agent.concurrent
    agent.repeatable = repeatable and agent.repeatable
    agent.reward_range = reward_range
    return agent


def _check_parameters(func: Callable[..., Any], name: str) -> dict[str, bool]:
    """Return the parameters that are injected, in order, and whether each has a default."""
    parameters = list(inspect.signature(func).parameters.values())
    if not parameters or parameters[0].name != "task" or parameters[0].kind in _NOT_POSITIONAL:
        _refuse(func, name, "does not take the task first")
    injected: dict[str, bool] = {}
    for parameter in parameters[1:]:
        if parameter.name in _INJECTED and parameter.kind in _BY_NAME:
            injected[parameter.name] = parameter.default is not parameter.empty
        elif parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
            _refuse(func, name, f"needs {parameter.name!r}, which is not injected")
    return injected


_NOT_POSITIONAL = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _refuse(func: Callable[..., Any], name: str, reason: str) -> None:
    raise AgentSignatureError(
        f"{name}{inspect.signature(func)} cannot be an agent: it {reason}; an agent function takes "
        "(task), (task, llm) or (task, prompt_template), and may take rollout as well"
    )


def _has(kind: type[Resource], resources: NamedResources) -> bool:
    return any(isinstance(value, kind) for value in resources.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "(none)"
