"""All calls between the trainer's thread and the algorithm's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from agl_algo_verl.rollout_groups import Prompt

__all__ = ["Bridge"]

T = TypeVar("T")


class Bridge:
    """The trainer's interface to the algorithm. Methods are called in the trainer's thread.

    Args:
        loop: The algorithm's event loop.
        submit: Starts groups of rollouts; called in the loop.
        serve: Directs the proxy to rollout servers, by address.
        close: Holds calls back; returns the number of aborted calls.
        open: Lets calls through, to weights of a version.
        take_metrics: Returns the counts of a partition.
        step_done: Receives the number and the metrics of a step.
        saved: Receives the number of a step and the folder of its checkpoint.
        finish: Cancels open rollouts before the servers stop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        submit: Callable[[Sequence[Prompt]], None],
        serve: Callable[[Sequence[str]], Coroutine[Any, Any, None]],
        close: Callable[[], Coroutine[Any, Any, int]],
        open: Callable[[int], Coroutine[Any, Any, None]],
        take_metrics: Callable[[str], dict[str, float]],
        step_done: Callable[[int, Mapping[str, float]], None],
        saved: Callable[[int, str], Coroutine[Any, Any, None]],
        finish: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop = loop
        self._submit = submit
        self._serve = serve
        self._close = close
        self._open = open
        self._saved = saved
        self._finish = finish
        self._step_done = step_done
        self.take_metrics = take_metrics
        self._changed = threading.Event()
        self._error: BaseException | None = None
        self._step = -1
        self._reported: set[str] = set()

    # -- called in any thread ----------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the trainer: a group has ended."""
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Make the trainer's next wait raise an error; only the first one counts."""
        if self._error is None:
            self._error = error
        self._changed.set()

    # -- called in the trainer's thread ------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until a group has ended, at most this long.

        Raises:
            BaseException: The error passed to :meth:`fail`.
        """
        self._changed.wait(seconds)
        self._changed.clear()
        self.check()

    def check(self) -> None:
        """Raise the error passed to :meth:`fail`, if any."""
        if self._error is not None:
            raise self._error

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Start a group per prompt, without waiting for them."""
        self._loop.call_soon_threadsafe(self._submit, list(prompts))

    def serve(self, addresses: Sequence[str], version: int) -> None:
        """Direct agents to these servers, which hold the weights of this version."""

        async def serve() -> None:
            await self._serve(addresses)
            await self._open(version)

        self._call(serve())

    def pause(self) -> int:
        """Hold agents' calls back; return the number of aborted calls."""
        return self._call(self._close())

    def resume(self, version: int) -> None:
        """Let agents' calls through to weights of this version."""
        self._call(self._open(version))

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a step, without what was reported of it before.

        verl adds the figures of a validation to those of its step, so each would count twice.
        """
        if step != self._step:
            self._step, self._reported = step, set()
        new = {name: value for name, value in metrics.items() if name not in self._reported}
        self._reported.update(new)
        self._loop.call_soon_threadsafe(self._step_done, step, new)

    def saved(self, step: int, folder: str) -> None:
        """Report a checkpoint; return when the run has recorded it."""
        self._call(self._saved(step, folder))

    def finish(self) -> None:
        """Cancel open rollouts, which will not be trained on any more."""
        self._call(self._finish())

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
