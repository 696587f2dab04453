"""One call of a store as a value, and the names of the calls that a store has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from agl_core.store._base import LightningStore

MEMBERS: Final = {
    name: member for name, member in vars(LightningStore).items() if not name.startswith("_")
}
"""The members of the contract, by name."""
CONTRACT: Final = frozenset(MEMBERS)
"""Names of all members of the contract."""
ASYNC_CALLS: Final = frozenset(
    name for name, member in MEMBERS.items() if inspect.iscoroutinefunction(member)
)
"""Names of the methods of the contract that are awaited."""
SYNC_CALLS: Final = CONTRACT - ASYNC_CALLS
"""Names of the other members of the contract, the property ``capabilities`` included."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class StoreCall(NamedTuple):
    """One call of a store; it does not change.

    Attributes:
        name: Name of the method.
        args: Positional arguments.
        kwargs: Keyword arguments; must not be changed, see :meth:`replace`.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = _NOTHING

    @classmethod
    def of(cls, name: str, /, *args: Any, **kwargs: Any) -> StoreCall:
        """Return a call, written as the call itself: ``of("query_attempts", rollout_id)``."""
        return cls(name, args, kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that were given, by name, in the order of the method's parameters."""
        parameters = list(_parameters(self.name))
        return {**dict(zip(parameters, self.args, strict=False)), **self.kwargs}

    def argument(self, name: str) -> Any:
        """Return an argument by name, however it was given, or its default.

        Raises:
            TypeError: The method has no such parameter, or has no default for it.
        """
        if name in self.kwargs:
            return self.kwargs[name]
        position, default = self._parameter(name)
        if position < len(self.args):
            return self.args[position]
        if default is inspect.Parameter.empty:
            raise TypeError(f"{self.name}() needs the argument {name!r}")
        return default

    def replace(self, **changes: Any) -> StoreCall:
        """Return the call with other values of the given arguments.

        Raises:
            TypeError: The method has no such parameter.
        """
        args, kwargs = list(self.args), {**self.kwargs}
        for name, value in changes.items():
            position, _ = self._parameter(name)
            if position < len(args):
                args[position] = value
            else:
                kwargs[name] = value
        return StoreCall(self.name, tuple(args), kwargs)

    def on(self, store: LightningStore) -> Any:
        """Make the call on a store; return what the method does, so an awaitable if it is async."""
        member = getattr(store, self.name)
        return member if self.name == "capabilities" else member(*self.args, **self.kwargs)

    def _parameter(self, name: str) -> tuple[int, Any]:
        parameters = _parameters(self.name)
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise TypeError(f"{self.name}() has no parameter {name!r} (it has: {known})")
        return parameters[name]


@cache  # one entry per method of the contract
def _parameters(method: str) -> dict[str, tuple[int, Any]]:
    """Return position and default of each parameter of a method, by name."""
    # These take the filters of `query_spans` as `**filters`.
    member = MEMBERS["query_spans" if method == "query_encoded_spans" else method]
    if isinstance(member, property):
        return {}
    parameters = list(inspect.signature(member).parameters.values())[1:]
    return {each.name: (position, each.default) for position, each in enumerate(parameters)}


Method: TypeAlias = Callable[..., Any]
"""A member of the contract as a function; ``capabilities`` takes no arguments."""
Next: TypeAlias = Callable[[StoreCall], Any]
"""The rest of the list, and then the store. It takes the call that an interceptor got, a changed
one, or a call of another method; for an async method it returns an awaitable."""
