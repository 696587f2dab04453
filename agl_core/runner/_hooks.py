"""Calls users' hooks in order; an error in one cannot fail a rollout."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from agl_core.runner._hook import Hook

logger = logging.getLogger(__name__)

_CALLBACKS: Final = ("on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end")


class Hooks:
    """The callbacks that hooks override.

    Args:
        hooks: The hooks, in calling order.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._overridden = {name: [*_overriding(hooks, name)] for name in _CALLBACKS}
        self._takes_error = {
            callback: _takes(callback, "error") for callback in self._overridden["on_trace_end"]
        }

    async def call(self, name: str, /, **arguments: Any) -> None:
        """Await each hook's callback; one that raises is logged."""
        for callback in self._overridden[name]:
            if not self._takes_error.get(callback, True):
                given = {key: value for key, value in arguments.items() if key != "error"}
            else:
                given = arguments
            try:
                await callback(**given)
            except Exception:
                logger.exception("%s raised; the rollout continues", _place(callback))


def _overriding(hooks: Sequence[Hook], name: str) -> list[Callable[..., Any]]:
    return [
        getattr(hook, name)
        for hook in hooks
        if getattr(type(hook), name, None) is not getattr(Hook, name)
    ]


def _takes(callback: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(callback).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _place(callback: Callable[..., Any]) -> str:
    return getattr(callback, "__qualname__", repr(callback))
