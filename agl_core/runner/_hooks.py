"""The callbacks that users write around rollouts, and their calls."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.types import ParallelWorkerBase

if TYPE_CHECKING:
    from agl_core.agent import LitAgent
    from agl_core.runner._base import Runner
    from agl_core.tracer import Tracer
    from agl_core.types import AttemptedRollout, Span

logger = logging.getLogger(__name__)

_CALLBACKS: Final = ("on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end")


class Hook(ParallelWorkerBase):
    """User callbacks around each rollout; override what you need.

    An error of a callback is logged and does not affect the rollout. With several runners in one
    process the same hook object is called concurrently.
    """

    async def on_rollout_start(
        self, *, agent: LitAgent[Any], runner: Runner[Any], rollout: AttemptedRollout
    ) -> None:
        """Called before the trace context of the attempt opens."""

    async def on_trace_start(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        tracer: Tracer,
        rollout: AttemptedRollout,
    ) -> None:
        """Called inside the trace context, before the agent's code."""

    async def on_trace_end(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        tracer: Tracer,
        rollout: AttemptedRollout,
        error: BaseException | None = None,
    ) -> None:
        """Called inside the trace context after the agent's code, also when it raised.

        A hook written without the ``error`` parameter is called without it.
        """

    async def on_rollout_end(
        self,
        *,
        agent: LitAgent[Any],
        runner: Runner[Any],
        rollout: AttemptedRollout,
        spans: Sequence[Span],
    ) -> None:
        """Called after the result was processed, before the attempt's final status is written."""


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
