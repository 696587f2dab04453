"""Interceptors: what watches or changes the calls of a store.

::

    class Audit(Interceptor):
        watches = ("update_rollout", "update_attempt")

        async def around(self, call: StoreCall, next: Next) -> Any:
            result = await next(call)
            logger.info("%s(%s)", call.name, call.arguments)
            return result

    store = intercept(InMemoryLightningStore(), Audit())

The model is that of temporalio's clients and workers and of gRPC's channels: one list, the first
interceptor is the outermost, and the chain is built once, when the list is set. Unlike temporalio,
an interceptor has one method for all calls of the contract and names those that it watches.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, TypeAlias, cast

from agl_core.errors import InvalidArgumentError
from agl_core.store._base import LightningStore
from agl_core.store._call import (
    ASYNC_CALLS,
    CONTRACT,
    MEMBERS,
    SYNC_CALLS,
    Method,
    Next,
    StoreCall,
)

_new_tuple = cast("Callable[..., Any]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""Makes a named tuple in half the time that its class takes."""


class Interceptor:
    """Base of interceptors: code around the calls of a store.

    A subclass overrides :meth:`around` for async methods, :meth:`around_sync` for the other
    members, or both. Calls that it does not handle or watch pass it by at no cost. An interceptor
    may call ``next`` several times or not at all. Its errors are those of the call.

    Thread-safe: calls come from every thread and event loop that uses the store. One object may be
    in the lists of several stores.
    """

    watches: Collection[str] | None = None
    """Names of the members of :class:`LightningStore` whose calls pass through this interceptor;
    None for all. Read when a list is set."""
    travels: ClassVar[bool] = True
    """Whether a pickled copy of the store has this interceptor. It then pickles itself."""

    async def around(self, call: StoreCall, next: Next) -> Any:
        """Handle a call of an async method; return its result.

        Args:
            call: The call.
            next: Passes a call on: ``await next(call)``.
        """
        return await next(call)

    def around_sync(self, call: StoreCall, next: Next) -> Any:
        """Handle a call of another member, or a read of ``capabilities``; return its result.

        Such a call must not wait: some are made in an event loop.

        Args:
            call: The call.
            next: Passes a call on: ``next(call)``.
        """
        return next(call)

    def wrap(self, name: str, method: Method, next: Next) -> Method:
        """Return the function that callers of a member get, which calls :meth:`around`.

        Called for each watched member when a list is set. Override it, instead of :meth:`around`,
        only where a call takes so little time that a :class:`StoreCall` per call (0.3 us) matters.

        Args:
            name: Name of the member.
            method: The rest of the list for this member.
            next: The same, for :class:`StoreCall` objects.
        """
        around = self.around if name in ASYNC_CALLS else self.around_sync

        # Not async, for a call to cost one coroutine less; what it returns is awaited all the same.
        def entry(*args: Any, **kwargs: Any) -> Any:
            return around(_new_tuple(StoreCall, (name, args, kwargs)), next)

        return entry

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.iscoroutinefunction(cls.around):
            raise TypeError(f"{cls.__qualname__}.around must be an async method")
        if inspect.iscoroutinefunction(cls.around_sync):
            raise TypeError(f"{cls.__qualname__}.around_sync must not be an async method")


@dataclass(frozen=True)
class _AroundFunction(Interceptor):
    """An async function ``(call, next)`` as an interceptor."""

    function: Callable[[StoreCall, Next], Any]

    async def around(self, call: StoreCall, next: Next) -> Any:
        return await self.function(call, next)


InterceptorLike: TypeAlias = Interceptor | Callable[[StoreCall, Next], Any]
"""An interceptor, or an async function that does what :meth:`Interceptor.around` does."""


def as_interceptor(given: object) -> Interceptor:
    """Return an interceptor, made of an async function if that is given.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(given, Interceptor):
        return given
    if inspect.iscoroutinefunction(given):
        return _AroundFunction(given)
    if isinstance(given, type) and issubclass(given, Interceptor):
        raise InvalidArgumentError(f"give an instance, {given.__name__}(), and not the class")
    raise InvalidArgumentError(
        f"{given!r} is not an interceptor: derive from agl_core.store.Interceptor, or give an "
        "async function (call, next)"
    )


def compose(store: LightningStore, interceptors: Iterable[Interceptor]) -> dict[str, Method]:
    """Build the chain of each member of the contract: the interceptors, then the store.

    Args:
        store: The store.
        interceptors: The outermost first.

    Returns:
        The functions by name; those of the store where no interceptor watches.

    Raises:
        InvalidArgumentError: An interceptor watches what is not a member of the contract.
    """
    methods: dict[str, Method] = {
        name: partial(getattr, store, name) if name == "capabilities" else getattr(store, name)
        for name in CONTRACT
    }
    for each in reversed(list(interceptors)):
        below = dict(methods)
        for name in watched_calls(each):
            method = below[name]
            entry = each.wrap(name, method, _next(name, method, below))
            methods[name] = wraps(method, updated=())(entry)
    return methods


def _next(name: str, method: Method, below: Mapping[str, Method]) -> Next:
    def following(call: StoreCall) -> Any:
        target = method if call.name == name else below.get(call.name)
        if target is None:
            raise InvalidArgumentError(f"no store has {_unknown(call.name)}")
        return target(*call.args, **call.kwargs)

    return following


def watched_calls(interceptor: Interceptor) -> frozenset[str]:
    """Return the names of the calls that pass through an interceptor.

    Raises:
        InvalidArgumentError: It watches what it does not handle, or what no store has.
    """
    handled: frozenset[str] = frozenset()
    cls = type(interceptor)
    if cls.around is not Interceptor.around or cls.wrap is not Interceptor.wrap:
        handled |= ASYNC_CALLS
    if cls.around_sync is not Interceptor.around_sync:
        handled |= SYNC_CALLS
    named = interceptor.watches
    if named is None:
        return handled
    if isinstance(named, str):
        named = (named,)
    for name in named:
        if name not in handled:
            raise InvalidArgumentError(_cannot_watch(interceptor, cast("object", name)))
    return frozenset(named)


def _cannot_watch(interceptor: Interceptor, name: object) -> str:
    kind = type(interceptor).__name__
    if name in MEMBERS:
        method = "around" if name in ASYNC_CALLS else "around_sync"
        return f"{kind} watches {name!r}, which needs the method {method}"
    return f"{kind} cannot watch {_unknown(name)}"


def _unknown(name: object) -> str:
    close = difflib.get_close_matches(str(name), MEMBERS, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name!r}, which is not a member of LightningStore{guess}"
