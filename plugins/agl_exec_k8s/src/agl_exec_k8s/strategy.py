"""``k8s``: runners as pods of a Kubernetes cluster, around a store server.

::

    agl train train.toml --set strategy=k8s --set strategy.image=registry.example/agent:1
"""

from __future__ import annotations

import logging
import secrets
import socket
from functools import partial
from typing import Final

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
from agl_exec_cs import RunServer, ServedRun, first_worker
from agl_exec_k8s.api import Api
from agl_exec_k8s.config import KubernetesConfig
from agl_exec_k8s.fleet import DeploymentFleet, Fleet
from agl_exec_k8s.jobs import JobFleet
from agl_exec_k8s.manifests import RunObjects
from agl_serving import is_loopback

__all__ = ["KubernetesExecutionStrategy"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5.0
"""Longest wait for the API server's port: a network answers, or drops packets, within it."""


class KubernetesExecutionStrategy(ExecutionStrategy):
    """Run the runners as pods of a Kubernetes cluster, around one store server.

    Options: :class:`KubernetesConfig`. The pods run the agent of the train file in their image, so
    the runner bundle of this process is not used. The server always has a secret:
    ``AGL_AUTH_TOKEN``, or one of this run. Pods get a token of the scope ``runner`` from a Secret.
    """

    @configured_by(KubernetesConfig)
    def __init__(self, config: KubernetesConfig) -> None:
        self.config = config
        self.n_runners = config.n_runners
        self._server = RunServer(config.server_host, config.server_port)

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        del runner
        self.interrupted = False
        stop = ThreadingEvent()
        api = Api(self.config)
        find_host = partial(_address_towards, api)
        with self._server.serve(store, find_host, secured_on_loopback=True) as run:
            fleet = self._fleet(run, api, stop)

            def note_interrupt() -> None:
                self.interrupted = True

            def end_runners() -> None:
                if fleet.shut_down():
                    self.interrupted = True
                for uid in fleet.uids:
                    self._release(run, uid, RUN_ENDED)

            try:
                fleet.start(self._server.runner_token(run))
                run.lead(
                    algorithm,
                    stop,
                    self.config.graceful_timeout,
                    on_interrupt=note_interrupt,
                    end_runners=end_runners,
                )
            finally:
                fleet.clean_up()
                for failure in fleet.failures:
                    logger.warning("A part of the run failed: %s", failure)
        if fleet.failures and not self.interrupted:
            raise RuntimeError("; ".join(fleet.failures))

    def _release(self, run: ServedRun, uid: str, reason: str) -> bool:
        """Fail the open attempts of a pod's runners; return whether they had finished any."""
        first, progress = first_worker(uid), False
        for worker in range(first, first + self.config.runners_per_pod):
            progress |= run.release(worker_name(worker), reason)
        return progress

    # -- pods ------------------------------------------------------------------------------------

    def _fleet(self, run: ServedRun, api: Api, stop: ThreadingEvent) -> Fleet:
        config = self.config
        objects = RunObjects(
            name=f"agl-{secrets.token_hex(4)}",
            namespace=api.namespace,
            config=config,
            url=config.store_url or run.url,
            owner=api.this_pod(),
        )
        logger.info("Objects of this run in %s: %s", api.namespace, objects.selector)

        def release(uid: str, reason: str) -> bool:
            return self._release(run, uid, reason)

        if config.runners == "jobs":
            store = run.store if run.served is None else run.served
            return JobFleet(config, api, objects, stop, release, store)
        return DeploymentFleet(config, api, objects, stop, release)


def _address_towards(api: Api) -> str | None:
    """Return the address of this machine from which it reaches the cluster; None is loopback.

    Raises:
        LaunchError: The API server cannot be reached.
    """
    try:
        with socket.create_connection((api.host, api.port), _CONNECT_SECONDS) as connection:
            host = connection.getsockname()[0]
    except OSError as error:
        raise LaunchError(f"no API server answers at {api.host}:{api.port}: {error}") from error
    return None if is_loopback(host) else host
