"""The only door between the trainer's thread and the algorithm's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from agl_algo_verl.feeder import Prompt

__all__ = ["Bridge"]

T = TypeVar("T")


class Bridge:
    """What the trainer can ask of the algorithm. Methods are called in the trainer's thread.

    Args:
        loop: The algorithm's loop.
        submit: Begins groups of rollouts; called in the loop.
        serve: Sends agents to rollout servers, by address.
        close: Closes the way to them; returns how many calls were aborted.
        open: Opens it, to weights of a version.
        take_metrics: Returns what was counted, of a partition.
        step_done: Told the number and the metrics of a step.
        saved: Told the number of a step and the folder of its checkpoint.
        finish: Ends what agents still do, before the servers go.
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

    # -- called in any thread ----------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the trainer: a group has ended."""
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Have the trainer's next wait raise an error; the first one counts."""
        if self._error is None:
            self._error = error
        self._changed.set()

    # -- called in the trainer's thread ------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until a group has ended, at most this long.

        Raises:
            BaseException: What was given to :meth:`fail`.
        """
        self._changed.wait(seconds)
        self._changed.clear()
        self.check()

    def check(self) -> None:
        """Raise what was given to :meth:`fail`, if anything was."""
        if self._error is not None:
            raise self._error

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Begin a group per prompt; does not wait for them."""
        self._loop.call_soon_threadsafe(self._submit, list(prompts))

    def serve(self, addresses: Sequence[str], version: int) -> None:
        """Let agents through to these servers, which have the weights of this version."""

        async def serve() -> None:
            await self._serve(addresses)
            await self._open(version)

        self._there(serve())

    def pause(self) -> int:
        """Keep agents from the servers; return how many calls were aborted."""
        return self._there(self._close())

    def resume(self, version: int) -> None:
        """Let agents through, to weights of this version."""
        self._there(self._open(version))

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a step."""
        self._loop.call_soon_threadsafe(self._step_done, step, dict(metrics))

    def saved(self, step: int, folder: str) -> None:
        """Report a checkpoint; return when the run has noted it."""
        self._there(self._saved(step, folder))

    def finish(self) -> None:
        """End what agents still do: rollouts that nothing will be trained on any more."""
        self._there(self._finish())

    def _there(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
