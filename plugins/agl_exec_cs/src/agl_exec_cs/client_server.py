"""``cs``: runners as processes, on this machine and others, around a store server.

It has three roles: ``both`` (algorithm, server and runners from one command), ``algorithm``
(algorithm and server, for runners elsewhere) and ``runner`` (runners for an algorithm elsewhere).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from agl_core.env import (
    LightningEnvVar,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from agl_core.errors import ConfigError, InvalidArgumentError, LaunchError
from agl_core.execution import (
    RUN_ENDED,
    AlgorithmBundle,
    ExecutionStrategy,
    RunnerBundle,
    ThreadingEvent,
)
from agl_core.known_errors import ERROR_TABLE
from agl_core.plugins import configured_by
from agl_core.runner import worker_name
from agl_core.store import LightningStore, innermost
from agl_core.types import ExecutionEvent
from agl_exec_cs.child import RunnerJob, run_runner, supervise_with_signals
from agl_exec_cs.children import Children
from agl_exec_cs.config import ClientServerConfig, Role
from agl_exec_cs.dead_runners import DeadRunners
from agl_exec_cs.events import MultiprocessingEvent
from agl_exec_cs.first_contact import server_url, wait_for_server
from agl_exec_cs.leftovers import Leftovers
from agl_exec_cs.main_guard import ADVICE, check_main_guard
from agl_exec_cs.orphans import end_with_parent
from agl_exec_cs.pickling import CloudPickled
from agl_exec_cs.renewal import wait_and_renew
from agl_exec_cs.run_store import RunStore
from agl_exec_cs.served_run import ServedRun, serve_run
from agl_exec_cs.store_access import StoreAccess, UrlPublisher, server_of
from agl_exec_cs.worker_ids import first_worker
from agl_store_http import LightningStoreClient

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


__all__ = ["ClientServerExecutionStrategy"]

logger = logging.getLogger(__name__)

_DEFAULT_HOST = "localhost"
_DEFAULT_PORT = 4747
"""As in version 0.3."""


class ClientServerExecutionStrategy(ExecutionStrategy):
    """Run each runner in its own process, around one store server.

    Options: :class:`ClientServerConfig`.

    Raises:
        InvalidArgumentError: The role that an option or a variable gives is unknown, or does not
            fit ``main_process``.
    """

    @configured_by(ClientServerConfig)
    def __init__(self, config: ClientServerConfig) -> None:
        env = LightningEnvVar
        self.role = resolve_str_env_var(env.AGL_CURRENT_ROLE, override=config.role, fallback="both")
        if self.role not in get_args(Role):
            raise InvalidArgumentError(
                f"role must be one of {', '.join(get_args(Role))}, not {self.role!r}"
            )
        self.server_host = resolve_str_env_var(
            env.AGL_SERVER_HOST, override=config.server_host, fallback=_DEFAULT_HOST
        )
        port = resolve_int_env_var(env.AGL_SERVER_PORT, override=config.server_port)
        self.server_port = _DEFAULT_PORT if port is None else port
        self._replaceable_port = self.server_port if port is None else None
        self.managed_store = resolve_bool_env_var(
            env.AGL_MANAGED_STORE, override=config.managed_store, fallback=True
        )
        self.n_runners = config.n_runners
        self.main_process = config.main_process
        if self.main_process == "runner" and (self.role != "both" or self.n_runners != 1):
            raise InvalidArgumentError("main_process='runner' needs role='both' and n_runners=1")
        self.graceful_timeout = config.graceful_timeout
        self.terminate_timeout = config.terminate_timeout
        self.allowed_exit_codes = tuple(config.allowed_exit_codes)
        self.start_method = config.start_method
        self.sync_agents = config.sync_agents
        self.max_restarts = config.max_restarts
        self.reconnect_timeout = config.reconnect_timeout
        self.connect_timeout = config.connect_timeout
        self.worker_seed = config.worker_seed

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        check_main_guard()
        self.interrupted = False
        if self.role == "algorithm":
            self.run_algorithm(algorithm, store, ThreadingEvent(), lambda url: None)
        elif self.role == "runner":
            self._run_runners(runner, store)
        elif self.main_process == "algorithm":
            self._run_both(algorithm, runner, store)
        else:
            self._run_runner_beside_algorithm(algorithm, runner, store)

    # -- the algorithm in this process -----------------------------------------------------------

    def run_algorithm(
        self,
        algorithm: AlgorithmBundle,
        store: LightningStore,
        stop: ExecutionEvent,
        publish: Callable[[str], None],
        end_runners: Callable[[], None] | None = None,
    ) -> None:
        """Serve the store, run the algorithm, and end the run, all in this thread.

        Args:
            algorithm: The algorithm bundle of the run.
            store: The store.
            stop: Ends the algorithm; set here when the algorithm has ended.
            publish: Called with the URL of the server when it is ready; ``""`` without a server.
            end_runners: Ends the runners of this machine while the server still runs.

        Raises:
            LaunchError: The server does not start.
            Exception: The error of the algorithm.
        """

        def note_interrupt() -> None:
            self.interrupted = True

        with self._serve(store) as run:
            publish(run.url)
            run.lead(
                algorithm,
                stop,
                self.graceful_timeout,
                on_interrupt=note_interrupt,
                end_runners=end_runners,
            )

    def _run_both(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        access = self._serverless_access(store)
        if access is None:
            store = RunStore(store)
        # A store that processes share is in use here, in another thread.
        elsewhere = DeadRunners(access) if access is not None and access.url else None
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)
        publisher = UrlPublisher(context, access, self.reconnect_timeout)
        workers = {f"runner-{i}": worker_name(i) for i in range(self.n_runners)}
        errors = context.Array("Q", ERROR_TABLE)

        def make_job(worker_id: int, report: Connection[str, Any]) -> RunnerJob:
            return RunnerJob(
                CloudPickled(runner),
                worker_id,
                stop,
                report,
                publisher.new_access(),
                self.graceful_timeout,
                errors,
                self.sync_agents == "main_thread",
            )

        def end_runners() -> None:
            if children.shut_down():
                self.interrupted = True
            if isinstance(store, RunStore):
                for name in workers.values():
                    store.release(name, RUN_ENDED)

        def on_death(name: str) -> bool:
            if isinstance(store, RunStore):
                return store.release(workers[name], "its runner died")
            return elsewhere is not None and elsewhere.release(workers[name], "its runner died")

        children = self._children(context, stop, on_death)
        # Before the server starts: a forked child inherits the locks of threads, not the threads.
        children.start({name: partial(make_job, i) for i, name in enumerate(workers)})
        try:
            self.run_algorithm(algorithm, store, stop, publisher.publish, end_runners)
        finally:
            children.shut_down()  # if the server did not start, the runners are still there
            self._log_failures(children)
        self._raise_failures(children)

    # -- runners in this process, or for an algorithm elsewhere ----------------------------------

    def _run_runners(self, runner: RunnerBundle, store: LightningStore) -> None:
        access = self._serverless_access(store)
        if access is None:
            wait_for_server(self._server_url(), self.connect_timeout)
            client = LightningStoreClient(self._server_url())
            access = StoreAccess.with_client(client, self.reconnect_timeout)
        first = first_worker(self.worker_seed)
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)
        errors = context.Array("Q", ERROR_TABLE)

        def make_job(worker_id: int, report: Connection[str, Any]) -> RunnerJob:
            return RunnerJob(
                CloudPickled(runner),
                worker_id,
                stop,
                report,
                access,
                self.graceful_timeout,
                errors,
                self.sync_agents == "main_thread",
            )

        workers = {f"runner-{i}": first + i for i in range(self.n_runners)}
        dead = DeadRunners(access)

        def on_death(name: str) -> bool:
            return dead.release(worker_name(workers[name]), "its runner died")

        children = self._children(context, stop, on_death, on_end=stop.set)
        children.start({name: partial(make_job, i) for name, i in workers.items()})
        try:
            # One runner notices the end of the run. The others may hang; they are ended below.
            wait_and_renew(stop, access.client)
        except KeyboardInterrupt:
            self.interrupted = True
            logger.warning("Stopping. Press Ctrl+C again to stop at once")
        finally:
            children.shut_down()
        self._raise_failures(children)

    def _run_runner_beside_algorithm(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)
        url, url_writer = context.Pipe(duplex=False)
        values = (CloudPickled(algorithm), CloudPickled(store), CloudPickled(self))
        children = self._children(context, stop, None, replace=False)
        children.start({"algorithm": partial(AlgorithmJob, *values, stop, url_writer)})
        url_writer.close()
        error: BaseException | None = None
        access = self._serverless_access(store)
        try:
            self._run_here(
                runner, 0, stop, access or StoreAccess.over_http(url, self.reconnect_timeout)
            )
            children.join()
        except KeyboardInterrupt:
            self.interrupted = True
        except BaseException as raised:
            error = raised
        if children.shut_down():
            self.interrupted = True
        if error is not None:
            self._log_failures(children)
            raise error
        self._raise_failures(children)

    def _run_here(
        self, runner: RunnerBundle, worker_id: int, stop: ExecutionEvent, access: StoreAccess
    ) -> None:
        self.interrupted = asyncio.run(
            supervise_with_signals(
                partial(run_runner, runner, worker_id, stop, access),
                stop,
                self.graceful_timeout,
                (signal.SIGINT, signal.SIGTERM),
            )
        )

    # -- the store -------------------------------------------------------------------------------

    def _serverless_access(self, store: LightningStore) -> StoreAccess | None:
        """Return how runners reach a store for which no server is started; None if one is needed.

        Raises:
            ConfigError: The server is switched off, and processes cannot share the store.
        """
        access = server_of(store, self.reconnect_timeout)
        if access is not None and self.role != "runner":
            return access
        if self.managed_store:
            return None
        if not store.capabilities.get("zero_copy"):
            name = type(innermost(store)).__name__
            raise ConfigError(
                f"{name} keeps its data in one process: leave managed_store on, or use a store "
                "that processes can share",
                path="store",
            )
        return StoreAccess.direct(store)

    def _serve(self, store: LightningStore) -> AbstractContextManager[ServedRun]:
        if self._serverless_access(store) is not None:
            return nullcontext(ServedRun(store, "", None))
        return serve_run(
            store if isinstance(store, RunStore) else RunStore(store),
            None if self.server_host == _DEFAULT_HOST else self.server_host,
            self.server_port,
            any_port=self.role == "both" and self.server_port == self._replaceable_port,
        )

    def _server_url(self) -> str:
        return server_url(self.server_host, self.server_port)

    # -- processes -------------------------------------------------------------------------------

    def _children(
        self,
        context: Any,
        stop: MultiprocessingEvent,
        on_death: Callable[[str], bool] | None,
        on_end: Callable[[], None] | None = None,
        *,
        replace: bool = True,
    ) -> Children:
        return Children(
            context,
            stop,
            graceful_timeout=self.graceful_timeout,
            terminate_timeout=self.terminate_timeout,
            allowed_exit_codes=self.allowed_exit_codes,
            max_restarts=self.max_restarts if replace else 0,
            on_death=on_death,
            on_end=on_end,
        )

    def _log_failures(self, children: Children) -> None:
        for failure in children.failures:
            if failure.endswith(ADVICE):
                continue  # the error says it once
            logger.warning("A part of the run failed: %s", failure)

    def _raise_failures(self, children: Children) -> None:
        if any(failure.endswith(ADVICE) for failure in children.failures):
            raise LaunchError(f"the runners did not start: {ADVICE}")
        if children.failures and not self.interrupted:
            raise RuntimeError("; ".join(children.failures))


@dataclass
class AlgorithmJob:
    """Runs the algorithm and the store server in a child process.

    Attributes:
        algorithm: The algorithm bundle of the run.
        store: The store.
        strategy: The parent's strategy.
        stop: The stop event of the run.
        url: The pipe for the URL of the server.
        report: The pipe for the end of the work.
    """

    algorithm: CloudPickled
    store: CloudPickled
    strategy: CloudPickled
    stop: MultiprocessingEvent
    url: Connection[str, Any]
    report: Connection[str, Any]

    def run(self, leftovers: Leftovers) -> None:
        end_with_parent(self.stop.set, leftovers)
        strategy: ClientServerExecutionStrategy = self.strategy.value
        strategy.run_algorithm(self.algorithm.value, self.store.value, self.stop, self.url.send)
