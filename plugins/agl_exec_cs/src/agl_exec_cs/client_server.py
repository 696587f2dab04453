"""``cs``: runners as processes, on this machine and others, around a store server.

The default strategy. It plays three roles: ``both`` (algorithm, server and runners from one
command), ``algorithm`` (algorithm and server, for runners elsewhere) and ``runner`` (runners for an
algorithm elsewhere).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from agl_core.env import (
    LightningEnvVar,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.execution import (
    AlgorithmBundle,
    ExecutionStrategy,
    MultiprocessingEvent,
    RunnerBundle,
    ThreadingEvent,
    supervise,
)
from agl_core.runner import worker_name
from agl_core.store import LightningStore
from agl_core.types import ExecutionEvent
from agl_exec_cs.child import RunnerJob, run_runner, supervise_with_signals
from agl_exec_cs.children import Children
from agl_exec_cs.lost_runners import fail_attempt_of
from agl_exec_cs.routes import Parcel, Route, Routes
from agl_exec_cs.run_store import RunStore
from agl_exec_cs.serving import ServedRun, serve_run

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


__all__ = ["ClientServerExecutionStrategy"]

logger = logging.getLogger(__name__)

Role = Literal["algorithm", "runner", "both"]
StartMethod = Literal["fork", "forkserver", "spawn"]

_DEFAULT_HOST = "localhost"
_DEFAULT_PORT = 4747


class ClientServerExecutionStrategy(ExecutionStrategy):
    """Run each runner in a process of its own, and let all talk to one store server.

    Args:
        role: Which part this process plays; None asks ``AGL_CURRENT_ROLE``, else ``both``.
        server_host: Where the server listens, or, for runners, where it is (a host name or a URL);
            None asks ``AGL_SERVER_HOST``, else this machine only.
        server_port: Its port, 0 for a free one; None asks ``AGL_SERVER_PORT``, else 4747, and in
            the role ``both`` a free one if that is taken.
        n_runners: Number of runner processes started here, at least 1.
        graceful_timeout: Seconds that everything has to end after the stop event.
        terminate_timeout: Seconds that a process has after each further step: interrupt,
            terminate, kill.
        main_process: Which side runs in this process in the role ``both``; ``runner`` is for
            debugging agents, needs ``n_runners=1``, and leaves this process's store and algorithm
            objects as they were.
        managed_store: Whether to serve the store (or, for runners, to use a client). False hands
            the store itself to both sides, which must be able to share it. None asks
            ``AGL_MANAGED_STORE``, else True.
        allowed_exit_codes: Exit codes of processes that are no failure.
        start_method: How processes start; None takes the platform's default.
        max_restarts: How often each runner process that died (was killed, ran out of memory,
            crashed) is replaced.
        reconnect_timeout: Seconds that runners wait for a lost server before they give up.

    Raises:
        InvalidArgumentError: An argument or a variable is outside its domain.
    """

    injects: ClassVar[frozenset[str]] = frozenset({"n_runners", "server_port"})

    def __init__(
        self,
        role: Role | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        main_process: Literal["algorithm", "runner"] = "algorithm",
        managed_store: bool | None = None,
        allowed_exit_codes: Collection[int] = (0, -15),
        start_method: StartMethod | None = None,
        max_restarts: int = 3,
        reconnect_timeout: float = 60.0,
    ) -> None:
        env = LightningEnvVar
        self.role = resolve_str_env_var(env.AGL_CURRENT_ROLE, override=role, fallback="both")
        self.server_host = resolve_str_env_var(
            env.AGL_SERVER_HOST, override=server_host, fallback=_DEFAULT_HOST
        )
        port = resolve_int_env_var(env.AGL_SERVER_PORT, override=server_port)
        self.server_port = _DEFAULT_PORT if port is None else port
        self._fallback_port = self.server_port if port is None else None
        self.managed_store = resolve_bool_env_var(
            env.AGL_MANAGED_STORE, override=managed_store, fallback=True
        )
        if self.role not in get_args(Role):
            raise InvalidArgumentError(
                f"role must be one of {', '.join(get_args(Role))}, not {self.role!r}"
            )
        if n_runners < 1:
            raise InvalidArgumentError(f"n_runners must be at least 1, not {n_runners}")
        if main_process not in ("algorithm", "runner"):
            raise InvalidArgumentError(
                f"main_process must be 'algorithm' or 'runner', not {main_process!r}"
            )
        if main_process == "runner" and (self.role != "both" or n_runners != 1):
            raise InvalidArgumentError("main_process='runner' needs role='both' and n_runners=1")
        self.n_runners = n_runners
        self.graceful_timeout = graceful_timeout
        self.terminate_timeout = terminate_timeout
        self.main_process = main_process
        self.allowed_exit_codes = tuple(allowed_exit_codes)
        self.start_method: StartMethod | None = start_method
        self.max_restarts = max_restarts
        self.reconnect_timeout = reconnect_timeout

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        self.interrupted = False
        if self.role == "algorithm":
            self.lead(algorithm, store, ThreadingEvent(), lambda url: None)
        elif self.role == "runner":
            self._follow(runner, store)
        elif self.main_process == "algorithm":
            self._lead_and_follow(algorithm, runner, store)
        else:
            self._follow_a_child(algorithm, runner, store)

    # -- the algorithm in this process -----------------------------------------------------------

    def lead(
        self,
        algorithm: AlgorithmBundle,
        store: LightningStore,
        stop: ExecutionEvent,
        tell: Callable[[str], None],
        end_runners: Callable[[], None] | None = None,
    ) -> None:
        """Serve the store, run the algorithm, and end the run; in this thread.

        Args:
            algorithm: The algorithm's side of the run.
            store: The store.
            stop: Ends the algorithm; set here when it has ended.
            tell: Called with the server's URL when it serves, or ``""`` if there is no server.
            end_runners: Ends the runners of this machine, while the server still serves.

        Raises:
            LaunchError: The server does not start.
            Exception: What the algorithm raised.
        """
        error: BaseException | None = None
        with self._serve(store) as run:
            tell(run.url)
            try:
                asyncio.run(
                    supervise(partial(algorithm, run.store, stop), stop, self.graceful_timeout)
                )
            except KeyboardInterrupt:
                self.interrupted = True
                logger.warning("Stopping. Press Ctrl+C again to stop at once")
            except BaseException as raised:
                error = raised
            stop.set()
            try:
                run.end()
                if end_runners is not None:
                    end_runners()
                run.settle(self.graceful_timeout)
            except KeyboardInterrupt:
                self.interrupted = True
        if error is not None:
            raise error

    def _lead_and_follow(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        direct = self._direct_route(store)
        if direct is None:
            store = RunStore(store)
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)
        routes = Routes(context, direct, self.reconnect_timeout)
        workers = {f"runner-{i}": worker_name(i) for i in range(self.n_runners)}

        def make_job(worker_id: int, report: Connection[str, Any]) -> RunnerJob:
            return RunnerJob(
                Parcel(runner), worker_id, stop, report, routes.next(), self.graceful_timeout
            )

        def end_runners() -> None:
            if children.shut_down():
                self.interrupted = True
            if isinstance(store, RunStore):
                for name in workers.values():
                    store.release(name, "the run ended before the attempt did")

        def on_death(name: str) -> None:
            if isinstance(store, RunStore):
                store.release(workers[name], "its runner died")

        children = self._children(context, stop, on_death)
        # Before the server: a fork takes no threads along, only the locks that they hold.
        children.start({name: partial(make_job, i) for i, name in enumerate(workers)})
        try:
            self.lead(algorithm, store, stop, routes.tell, end_runners)
        finally:
            children.shut_down()  # there may be some if the server did not start
            self._log_failures(children)
        self._raise_failures(children)

    # -- runners in this process, or for an algorithm elsewhere ----------------------------------

    def _follow(self, runner: RunnerBundle, store: LightningStore) -> None:
        route = self._direct_route(store) or Route(
            Parcel(None), self._server_url(), self.reconnect_timeout
        )
        # Numbers that no other machine is likely to have drawn.
        first = int.from_bytes(os.urandom(4)) & ~0xFF
        if self.n_runners == 1:
            self._run_here(runner, first, ThreadingEvent(), route)
            return
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)

        def make_job(worker_id: int, report: Connection[str, Any]) -> RunnerJob:
            return RunnerJob(Parcel(runner), worker_id, stop, report, route, self.graceful_timeout)

        workers = {f"runner-{i}": first + i for i in range(self.n_runners)}

        def on_death(name: str) -> None:
            fail_attempt_of(route, worker_name(workers[name]), "its runner died")

        children = self._children(context, stop, on_death, on_end=stop.set)
        children.start({name: partial(make_job, i) for name, i in workers.items()})
        try:
            # One of them learns that the run is over; the others may hang, and are ended below.
            stop.wait()
        except KeyboardInterrupt:
            self.interrupted = True
            logger.warning("Stopping. Press Ctrl+C again to stop at once")
        children.shut_down()
        self._raise_failures(children)

    def _follow_a_child(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        stop = MultiprocessingEvent(context)
        url, tell = context.Pipe(duplex=False)
        parcels = (Parcel(algorithm), Parcel(store), Parcel(self))
        children = self._children(context, stop, None, replace=False)
        children.start({"algorithm": partial(AlgorithmJob, *parcels, stop, tell)})
        tell.close()
        error: BaseException | None = None
        direct = self._direct_route(store)
        try:
            self._run_here(
                runner, 0, stop, direct or Route(Parcel(None), url, self.reconnect_timeout)
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
        self, runner: RunnerBundle, worker_id: int, stop: ExecutionEvent, route: Route
    ) -> None:
        self.interrupted = asyncio.run(
            supervise_with_signals(
                partial(run_runner, runner, worker_id, stop, route),
                stop,
                self.graceful_timeout,
                (signal.SIGINT, signal.SIGTERM),
            )
        )

    # -- the store -------------------------------------------------------------------------------

    def _direct_route(self, store: LightningStore) -> Route | None:
        """Return how runners reach a store that needs no server of ours; None if it needs one.

        Raises:
            ConfigError: Nobody is to serve it, and processes cannot share it.
        """
        from agl_store_http import LightningStoreClient

        if isinstance(store, LightningStoreClient) and self.role != "runner":
            return Route(Parcel(None), store.server_address, self.reconnect_timeout)
        if self.managed_store:
            return None
        if not store.capabilities.get("zero_copy"):
            raise ConfigError(
                f"{type(store).__name__} keeps its data in one process and cannot be handed to "
                "others: leave managed_store on, or use a store that processes can share",
                path="store",
            )
        return Route(Parcel(store))

    def _serve(self, store: LightningStore) -> AbstractContextManager[ServedRun]:
        if self._direct_route(store) is not None:
            return nullcontext(ServedRun(store, "", None))
        return serve_run(
            store if isinstance(store, RunStore) else RunStore(store),
            None if self.server_host == _DEFAULT_HOST else self.server_host,
            self.server_port,
            any_port=self.role == "both" and self.server_port == self._fallback_port,
        )

    def _server_url(self) -> str:
        if "://" in self.server_host:
            return self.server_host
        return f"http://{self.server_host}:{self.server_port}"

    # -- processes -------------------------------------------------------------------------------

    def _children(
        self,
        context: Any,
        stop: MultiprocessingEvent,
        on_death: Callable[[str], None] | None,
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
            logger.warning("A part of the run failed: %s", failure)

    def _raise_failures(self, children: Children) -> None:
        if children.failures and not self.interrupted:
            raise RuntimeError("; ".join(children.failures))


@dataclass
class AlgorithmJob:
    """Runs the algorithm and the store server in a child process.

    Attributes:
        algorithm: The algorithm's side of the run.
        store: The store.
        strategy: The parent's strategy.
        stop: The stop event of the run.
        tell: Where the server's URL goes.
        report: Where the child writes why it failed.
    """

    algorithm: Parcel
    store: Parcel
    strategy: Parcel
    stop: MultiprocessingEvent
    tell: Connection[str, Any]
    report: Connection[str, Any]

    def run(self) -> None:
        strategy: ClientServerExecutionStrategy = self.strategy.content
        strategy.lead(self.algorithm.content, self.store.content, self.stop, self.tell.send)
