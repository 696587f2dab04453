"""The trainer of 0.1 beside that of 0.3: runs an agent on the tasks of a task server."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

import agl_core as agl
from agl_core.adapter import Adapter
from agl_core.errors import ConfigError, RunFailedError
from agl_core.plugins import ComponentLike
from agl_legacy.runner import LegacyAgentRunner
from agl_legacy.task_client import AgentLightningClient, DevTaskLoader

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)

_GRACE: Final = 3.0
"""Seconds that a worker has to end after Ctrl+C, and after each further step."""


class Trainer(agl.Trainer):
    """:class:`agl_core.Trainer`, which takes 0.3's deprecated arguments and 0.1's task servers.

    Args:
        dev: In 0.1: run on ``dev_data`` in this process instead of on the server.
        n_workers: Old name of ``n_runners``.
        max_tasks: Old name of ``max_rollouts``.
        daemon: Without effect.
        triplet_exporter: Old name of ``adapter``.
        options: Arguments of :class:`agl_core.Trainer`; one that is given wins over its old name.
    """

    def __init__(
        self,
        *,
        dev: bool | None = None,
        n_workers: int | None = None,
        max_tasks: int | None = None,
        daemon: bool | None = None,
        triplet_exporter: ComponentLike[Adapter[Any, Any]] = None,
        **options: Any,
    ) -> None:
        if dev:
            _warn("dev=True", "Trainer.dev()")
        if daemon is not None:
            _warn("daemon", "the strategy's own options")
        for old, value, new in (
            ("n_workers", n_workers, "n_runners"),
            ("max_tasks", max_tasks, "max_rollouts"),
            ("triplet_exporter", triplet_exporter, "adapter"),
        ):
            if value is not None:
                _warn(old, new)
                if options.get(new) is None:
                    options[new] = value
        super().__init__(**options)
        self._runs_dev_data = bool(dev)

    def fit(
        self,
        agent: agl.LitAgent[Any],
        train_dataset: agl.Dataset[Any] | str | AgentLightningClient | None = None,
        *,
        val_dataset: agl.Dataset[Any] | None = None,
        dev_data: AgentLightningClient | None = None,
    ) -> None:
        """See :meth:`agl_core.Trainer.fit`; a URL or a client of 0.1 is :meth:`fit_v0`."""
        if isinstance(train_dataset, (str, AgentLightningClient)):
            self.fit_v0(agent, train_dataset, dev_data=dev_data)
        else:
            super().fit(agent, train_dataset, val_dataset=val_dataset)

    def fit_v0(
        self,
        agent: agl.LitAgent[Any],
        train_data: str | AgentLightningClient,
        *,
        dev_data: AgentLightningClient | None = None,
    ) -> None:
        """Run the agent on the tasks of a server, in ``n_runners`` processes, until Ctrl+C.

        Each process ends after ``max_rollouts`` tasks. The tasks of a :class:`DevTaskLoader` run in
        this process, by default once each.

        Args:
            agent: The agent.
            train_data: URL of the task server, or a client.
            dev_data: With ``Trainer(dev=True)``: what to use instead.

        Raises:
            ConfigError: ``dev=True`` without ``dev_data``.
            RunFailedError: A process failed.
        """
        warnings.warn(
            "tasks of a server of 0.1 are deprecated; use an algorithm and a store",
            DeprecationWarning,
            stacklevel=3,
        )
        client: AgentLightningClient | str | None = dev_data if self._runs_dev_data else train_data
        if client is None:
            raise ConfigError("dev=True needs it", path="dev_data")
        if isinstance(client, str):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                client = AgentLightningClient(client)
        agent.set_trainer(self)
        self.interrupted = False
        max_tasks = self.max_rollouts
        if isinstance(client, DevTaskLoader) and max_tasks is None:
            max_tasks = len(client)
        worker = _Worker(agent, client, self.tracer, self.adapter, max_tasks)
        if self.n_runners == 1 or isinstance(client, DevTaskLoader):
            try:
                worker.run(0)
            except KeyboardInterrupt:
                self.interrupted = True
        else:
            self._run_processes(worker)

    def _run_processes(self, worker: _Worker) -> None:
        context = multiprocessing.get_context()
        processes = [
            context.Process(target=_child, args=(worker, number), name=f"runner-{number}")
            for number in range(self.n_runners)
        ]
        for process in processes:
            process.start()
        try:
            _wait_for(processes)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for process in processes:
                _end(process)
        failed = [process for process in processes if process.exitcode != 0]
        if failed and not self.interrupted:
            codes = ", ".join(f"{each.name} (exit code {each.exitcode})" for each in failed)
            raise RunFailedError(f"processes failed: {codes}; the log has their errors")


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)


def _merge_parameters(mine: Callable[..., None], theirs: Callable[..., None]) -> None:
    """Give a constructor its own parameters and those that it passes on, for lightning_cli."""
    signature, own = inspect.signature(theirs), inspect.signature(mine).parameters
    more = [p for p in own.values() if p.kind is p.KEYWORD_ONLY]
    hints = {parameter.name: parameter.annotation for parameter in more}
    functools.update_wrapper(mine, theirs)
    mine.__annotations__ = {**theirs.__annotations__, **hints}
    parameters = [*signature.parameters.values(), *more]
    cast("Any", mine).__signature__ = signature.replace(parameters=parameters)


_merge_parameters(Trainer.__init__, agl.Trainer.__init__)


class _Worker:
    """Runs tasks in one process; pickled by value, for agents of ``__main__``."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def run(self, number: int) -> None:
        agent, client, tracer, adapter, max_tasks = self._parts
        runner = LegacyAgentRunner(agent, client, tracer, adapter, number, max_tasks)
        tracer.init()
        try:
            tracer.init_worker(number)
            try:
                asyncio.run(runner.iter_async())
            finally:
                tracer.teardown_worker(number)
        finally:
            tracer.teardown()

    def __getstate__(self) -> bytes:
        return cloudpickle.dumps(self._parts)  # pyright: ignore[reportUnknownMemberType]

    def __setstate__(self, state: bytes) -> None:
        self._parts = cloudpickle.loads(state)


def _child(worker: _Worker, number: int) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        worker.run(number)
    except KeyboardInterrupt:
        logger.info("runner-%d was interrupted", number)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(processes: Sequence[BaseProcess]) -> None:
    """Wait until all processes have ended; log each failed one when it ends."""
    running: dict[Any, BaseProcess] = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait([*running]):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                logger.error(
                    "%s ended with exit code %s; processes that go on: %d",
                    *(process.name, process.exitcode, len(running)),
                )


def _end(process: BaseProcess) -> None:
    """Wait for a process that Ctrl+C has reached, too; end it by force if it does not end."""
    process.join(_GRACE)
    for act in (process.terminate, process.kill):
        if process.is_alive():
            act()
            process.join(_GRACE)
