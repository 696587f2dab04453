"""``ray``: runners as actors of a Ray cluster, around a store server.

::

    trainer = Trainer(algorithm=..., n_runners=64, strategy={"type": "ray", "num_cpus": 0.25})
    trainer.fit(agent, tasks)
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

import ray

from agl_core.errors import LaunchError
from agl_core.execution import (
    RUN_ENDED,
    AlgorithmBundle,
    ExecutionStrategy,
    RunnerBundle,
    ThreadingEvent,
)
from agl_core.plugins import configured_by
from agl_core.runner import worker_name
from agl_core.store import LightningStore
from agl_exec_cs import RunServer, ServedRun, StoreAccess
from agl_exec_ray.cluster import Cluster, connected
from agl_exec_ray.config import RayConfig
from agl_exec_ray.fleet import Fleet, Work
from agl_exec_ray.remote_algorithm import RemoteAlgorithm

__all__ = ["RayExecutionStrategy"]

logger = logging.getLogger(__name__)


class RayExecutionStrategy(ExecutionStrategy):
    """Run the runners as actors of a Ray cluster, around one store server.

    Options: :class:`RayConfig`. On a network the server always has a token: ``AGL_AUTH_TOKEN``, or
    one of this run. Runners get a token of their scope, signed with it.
    """

    @configured_by(RayConfig)
    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self.n_runners = config.n_runners
        self._server = RunServer(config.server_host, config.server_port)

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        self.interrupted = False
        stop = ThreadingEvent()
        with connected(self.config) as cluster, self._serve(store, cluster) as run:
            lead = self._lead(algorithm, run, cluster)
            fleet = self._fleet(runner, run, cluster, stop)

            def note_interrupt() -> None:
                self.interrupted = True

            def end_runners() -> None:
                if fleet.shut_down():
                    self.interrupted = True
                if run.served is not None:
                    for worker in range(self.n_runners):
                        run.served.release(worker_name(worker), RUN_ENDED)

            fleet.start()
            try:
                run.lead(
                    lead,
                    stop,
                    self.config.graceful_timeout,
                    on_interrupt=note_interrupt,
                    end_runners=end_runners,
                )
            finally:
                for failure in fleet.failures:
                    logger.warning("A part of the run failed: %s", failure)
        if fleet.failures and not self.interrupted:
            raise RuntimeError("; ".join(fleet.failures))

    def _serve(self, store: LightningStore, cluster: Cluster) -> AbstractContextManager[ServedRun]:
        return self._server.serve(store, lambda: cluster.host, secured_on_loopback=False)

    # -- actors ----------------------------------------------------------------------------------

    def _fleet(
        self, runner: RunnerBundle, run: ServedRun, cluster: Cluster, stop: ThreadingEvent
    ) -> Fleet:
        config = self.config
        options: dict[str, Any] = {
            **_resources(config.num_cpus, config.num_gpus, config.resources, cluster),
            "scheduling_strategy": config.scheduling_strategy,
        }
        if config.memory is not None:
            options["memory"] = config.memory
        access = StoreAccess.over_http(run.url, config.reconnect_timeout)
        work = Work(_put(runner, "agent"), access, self._server.runner_token(run), options)
        return Fleet(config, work, run.served or run.store, stop, run.release)

    def _lead(
        self, algorithm: AlgorithmBundle, run: ServedRun, cluster: Cluster
    ) -> AlgorithmBundle:
        config = self.config
        if config.algorithm == "driver":
            return algorithm
        options = _resources(
            config.algorithm_num_cpus,
            config.algorithm_num_gpus,
            config.algorithm_resources,
            cluster,
        )
        return RemoteAlgorithm(
            _put(algorithm, "algorithm"),
            options,
            run.url,
            self._server.secret,  # its proxy checks the agents' keys with it
            config.graceful_timeout,
        )


def _resources(
    cpus: float, gpus: float, resources: dict[str, float], cluster: Cluster
) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "resources": resources}
    if cluster.runtime_env:
        options["runtime_env"] = cluster.runtime_env
    return options


def _put(bundle: Any, what: str) -> Any:
    try:
        return ray.put(bundle)
    except (TypeError, AttributeError) as error:
        raise LaunchError(
            f"the {what} cannot be pickled for Ray: {error}; create what cannot be pickled "
            "(clients, locks, open files) where it is used"
        ) from error
