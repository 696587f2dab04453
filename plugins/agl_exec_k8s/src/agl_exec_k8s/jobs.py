"""Runners as Jobs: one for each rollout attempt, in a fresh pod."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from agl_core.errors import StoreUnavailableError
from agl_core.execution import ThreadingEvent
from agl_core.runner import worker_name
from agl_core.store import LightningStore
from agl_exec_cs import RunStore, ScaledStore, first_worker, open_rollouts
from agl_exec_k8s.api import ERRORS, Api, described
from agl_exec_k8s.config import KubernetesConfig
from agl_exec_k8s.fleet import Fleet
from agl_exec_k8s.manifests import RunObjects
from agl_exec_k8s.pods import Ending

__all__ = ["JobFleet"]

logger = logging.getLogger(__name__)

_PERIOD: Final = 5.0
"""Longest time between two looks at the queue, in seconds."""
_PATIENCE: Final = 1.0
"""Time in which a Job gets its pod, in seconds; then the events are read."""
_FAILED: Final = ("FailureTarget", "Failed")
_POD_DIED: Final = "BackoffLimitExceeded"  # its pod says why


class JobFleet(Fleet):
    """Keeps one Job for each open rollout, up to a limit.

    A Job's runner claims one rollout, and ends after it. An attempt that fails opens its rollout
    again if its config says so, which starts another Job.

    Args:
        config: Options of the strategy.
        api: The client of the run's namespace.
        objects: Manifests of the run.
        stop: The stop event of the run.
        release: See :class:`Fleet`.
        store: The store of the run, whose open rollouts are counted.
    """

    owners = "jobs"

    def __init__(
        self,
        config: KubernetesConfig,
        api: Api,
        objects: RunObjects,
        stop: ThreadingEvent,
        release: Callable[[str, str], bool],
        store: LightningStore,
    ) -> None:
        super().__init__(config, api, objects, stop, release)
        self._store = store
        self._wake = store.enqueued if isinstance(store, ScaledStore) else ThreadingEvent()
        self._active: set[str] = set()
        """Jobs that have not ended; also changed in the thread of their watcher."""
        self._without_pod: dict[str, float] = {}
        """Jobs of which no pod was seen, with the monotonic time of their creation."""
        self._causes: dict[str, str] = {}
        """Why a Job has failed that is there or whose pod is, by name."""
        self._ended_pods: dict[str, str] = {}
        """The uid of the pod whose runner has ended, by the name of its Job."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="agl-k8s-queue", daemon=True)

    def _start_owners(self) -> None:
        self._thread.start()

    def _stop_owners(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _on_owner(self, owner: dict[str, Any], gone: bool) -> None:
        name = owner["metadata"]["name"]
        conditions = owner.get("status", {}).get("conditions") or []
        met = {each["type"]: each for each in conditions if each["status"] == "True"}
        for failed in (met[kind] for kind in _FAILED if kind in met):
            cause = f"{failed.get('reason')}: {failed.get('message')}"
            if not cause.startswith(_POD_DIED) and self._causes.get(name) != cause:
                self._causes[name] = cause
                logger.warning("Job %s was ended: %s", name, cause)
                self._explain(name)
        if gone and self._ended_pods.pop(name, None) is not None:
            self._causes.pop(name, None)
        if gone or "Complete" in met or "Failed" in met:
            self._active.discard(name)
            self._without_pod.pop(name, None)
            self._note_trouble(name, None)
            self._wake.set()
        else:
            self._active.add(name)

    def _on_pod(self, pod: dict[str, Any], gone: bool) -> None:
        for name in _owners(pod):
            self._without_pod.pop(name, None)
            self._note_trouble(name, None)
        super()._on_pod(pod, gone)

    def _bury(self, pod: dict[str, Any], ending: Ending, gone: bool) -> None:
        super()._bury(pod, ending, gone)
        for name in _owners(pod):
            self._ended_pods[name] = pod["metadata"]["uid"]
            self._explain(name)

    def _cause(self, pod: dict[str, Any], ending: Ending) -> str:
        causes = [self._causes[name] for name in _owners(pod) if name in self._causes]
        return "; ".join([ending.cause, *causes])

    def _explain(self, name: str) -> None:
        """Name what ended a Job in its attempt's error, once its runner has written its own."""
        cause, uid = self._causes.get(name), self._ended_pods.get(name)
        if cause is not None and uid is not None and isinstance(self._store, RunStore):
            self._store.explain(worker_name(first_worker(uid)), cause)

    # -- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._ended.is_set():
                self._wake.clear()
                self._start_jobs()
                self._read_refusals()
                self._wake.wait(_PERIOD)
        except Exception as error:
            logger.exception("Jobs are not started any more")
            self._on_failure(error)

    def _start_jobs(self) -> None:
        try:
            count = asyncio.run(open_rollouts(self._store))
        except StoreUnavailableError as error:
            logger.warning("The queue cannot be counted: %s", error)
            return
        for _ in range(min(count, self._config.n_runners) - len(self._active)):
            if self._ended.is_set():
                return
            name = f"{self._objects.name}-{secrets.token_hex(4)}"
            try:
                self._api.create("jobs", self._objects.job(name), patiently=False)
            except ERRORS as error:
                self._note_trouble(self._objects.name, described(error))
                return  # a quota, or the server is away: the next look tries again
            self._note_trouble(self._objects.name, None)
            self._active.add(name)
            self._without_pod[name] = time.monotonic()
            if self._deadline.ident is None:
                self._deadline.start()

    def _read_refusals(self) -> None:
        """Log why Jobs have no pod. A quota on pods is in no status, only in their events."""
        now = time.monotonic()
        late = {name for name, since in self._without_pod.copy().items() if now - since > _PATIENCE}
        if not late:
            return
        try:
            refusals = self._api.refusals("Job")
        except ERRORS as error:
            logger.debug("the events cannot be read: %s", described(error))
            return
        # A pod may have been created meanwhile.
        for name in late & refusals.keys() & self._without_pod.keys():
            self._note_trouble(name, refusals[name])


def _owners(pod: dict[str, Any]) -> list[str]:
    """Return the names of the Jobs of a pod."""
    return [each["name"] for each in pod["metadata"].get("ownerReferences") or []]
