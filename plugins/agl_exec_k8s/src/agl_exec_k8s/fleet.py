"""Starts, watches, replaces and ends the pods of a run's runners."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core.errors import LaunchError, error_text
from agl_core.execution import RUN_ENDED, ThreadingEvent
from agl_exec_cs import wait_in_steps
from agl_exec_k8s.api import ERRORS, Api, described, status_of
from agl_exec_k8s.config import KubernetesConfig
from agl_exec_k8s.manifests import CONTAINER, Manifest, RunObjects, reference
from agl_exec_k8s.pods import (
    COMPLETED,
    CRASH_LOOP,
    Ending,
    ending_of,
    has_run,
    trouble_of,
    waiting_reason,
)
from agl_exec_k8s.watching import Watcher

__all__ = ["DeploymentFleet", "Fleet"]

logger = logging.getLogger(__name__)

_LOG_CHARACTERS: Final = 2_000
"""The end of a pod's log in an error message: about 25 lines."""
_CONFLICT: Final = 409
"""HTTP status for a name that exists."""
_DELETED: Final = "its pod was deleted"


@dataclass
class _Pod:
    name: str
    endings: set[str] = field(default_factory=set)


class Fleet(ABC):
    """The pods of a run, watched in threads.

    Args:
        config: Options of the strategy.
        api: The client of the run's namespace.
        objects: Manifests of the run.
        stop: The stop event of the run.
        release: Called with the uid of a pod and a reason when its runners are gone; fails their
            open attempts. Returns whether they had finished an attempt since the last call.

    Attributes:
        failures: One line per failure.
    """

    owners: str
    """Plural of the kind of what owns the pods."""

    def __init__(
        self,
        config: KubernetesConfig,
        api: Api,
        objects: RunObjects,
        stop: ThreadingEvent,
        release: Callable[[str, str], bool],
    ) -> None:
        self.failures: list[str] = []
        self._config, self._api, self._objects = config, api, objects
        self._secret: Manifest = {}
        self._stop, self._release = stop, release
        self._pods: dict[str, _Pod] = {}
        self._none_left = threading.Event()
        self._crashes = 0
        self._troubles: dict[str, str] = {}
        """Why a pod or its owner does not start, by name."""
        self._noting = threading.Lock()  # of the troubles: every thread of the run notes them
        self._deadline = threading.Timer(config.start_timeout, self._on_start_timeout)
        self._deadline.daemon = True
        self._watchers = [
            Watcher(api, kind, objects.selector, on_change, self._on_failure)
            for kind, on_change in ((self.owners, self._on_owner), ("pods", self._on_pod))
        ]

    def start(self, token: str) -> None:
        """Create the objects of the run.

        Args:
            token: Access token of the runners for the store server.

        Raises:
            LaunchError: The API server refuses them, or cannot be reached.
        """
        try:
            self._secret = self._objects.secret(token)
            secret = self._api.create("secrets", self._secret)
            # Who deletes the Secret deletes everything; it goes with this pod if this is one.
            self._objects.owner = reference("Secret", secret)
            self._start_owners()
        except ERRORS as error:
            raise LaunchError(f"runners cannot be started: {described(error)}") from error
        except ValueError as error:  # the client checks manifests
            raise LaunchError(f"the options make no valid manifest: {error}") from error
        for watcher in self._watchers:
            watcher.start()

    @property
    def uids(self) -> list[str]:
        """The pods that are not known to be gone."""
        return list(self._pods)

    def shut_down(self) -> bool:
        """End all pods, by force if needed. Ctrl+C kills them at once.

        Returns:
            Whether Ctrl+C was pressed.
        """
        self._stop.set()
        self._deadline.cancel()
        config = self._config
        try:
            self._delete_owners()
            if not self._pods:
                return False
            # The grace period of the pods, and the time in which deletions are noticed.
            longest = 2 * config.graceful_timeout + config.terminate_timeout
            if not wait_in_steps(self._none_left.wait, longest):
                logger.warning("%d pods did not end in time; killing them", len(self._pods))
        except KeyboardInterrupt:
            return True
        except ERRORS as error:
            logger.warning("The runners cannot be ended: %s", described(error))
        return False

    def clean_up(self) -> None:
        """Delete everything that the run has created; says what cannot be deleted."""
        self._stop.set()
        self._deadline.cancel()
        selector = self._objects.selector
        try:
            self._delete_owners()
            for name in self._api.names("pods", selector):
                self._api.delete("pods", name, by_force=True)
            self._none_left.wait(self._config.terminate_timeout if self._pods else 0)
            self._api.delete("secrets", self._objects.name)
        except ERRORS as error:
            logger.error(
                "Objects of the run may be left: %s. Delete them with `kubectl delete "
                "%s,pods,secrets --namespace %s --selector %s`",
                *(described(error), self.owners, self._objects.namespace, selector),
            )
        finally:
            for watcher in self._watchers:
                watcher.stop()

    def _delete_owners(self) -> None:
        self._stop_owners()
        for name in self._api.names(self.owners, self._objects.selector):
            self._api.delete(self.owners, name)

    # -- owners ----------------------------------------------------------------------------------

    @abstractmethod
    def _start_owners(self) -> None:
        """Create what owns the pods; start the deadline when the first of them is asked for."""

    def _stop_owners(self) -> None:  # noqa: B027 -- nothing to do for one that is made once
        """Create no more of them; called before they are deleted."""

    @abstractmethod
    def _on_owner(self, owner: dict[str, Any], gone: bool) -> None:
        """React to a change of an owner."""

    # -- pods; in the thread of their watcher ----------------------------------------------------

    def _on_pod(self, pod: dict[str, Any], gone: bool) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if known is None:
            known = self._pods[uid] = _Pod(name)
            self._none_left.clear()
        ending = ending_of(pod)
        if ending is not None and ending.key not in known.endings:
            known.endings.add(ending.key)
            self._bury(pod, ending, gone)
        if gone:
            if not known.endings:
                logger.info("Pod %s was deleted", name)
                self._release(uid, self._reason(_DELETED))
            del self._pods[uid]
            self._note_trouble(name, None)
            if not self._pods:
                self._none_left.set()
            return
        if has_run(pod):
            self._deadline.cancel()
        self._note_trouble(name, trouble_of(pod))
        if not self._stop.is_set() and self._is_useless(pod, ending):
            self._discard(name)

    def _bury(self, pod: dict[str, Any], ending: Ending, gone: bool) -> None:
        """Log the end of a runner, and release its attempts."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if self._stop.is_set() or ending.cause == COMPLETED:
            if self._release(uid, self._reason(ending.cause)):
                self._crashes = 0
            return
        cause = self._cause(pod, ending)
        log = self._log_of(name, ending, gone)
        logger.warning("The runner of pod %s died: %s%s", name, cause, log)
        # A container that follows in the same pod has failed the attempts itself.
        progress = False if ending.restarted else self._release(uid, self._reason(cause) + log)
        if progress:
            self._crashes = 0
        if not ending.crashed:
            return
        self._crashes += 1
        if self._crashes > self._config.max_restarts * self._objects.most_pods:
            self._fail(f"runners die again and again; pod {name}: {cause}{log}")

    def _cause(self, pod: dict[str, Any], ending: Ending) -> str:
        """Return what ended a runner."""
        return ending.cause

    def _reason(self, cause: str) -> str:
        """Return the reason for the attempts of a runner that is gone."""
        return RUN_ENDED if self._stop.is_set() else f"its runner died: {cause}"

    def _log_of(self, name: str, ending: Ending, gone: bool) -> str:
        """Return the end of a runner's log, on lines of its own."""
        count, log = self._config.log_lines, ending.message
        if not log and count and not gone:
            try:
                log = self._api.log(name, CONTAINER, count, previous=ending.previous)
            except ERRORS as error:
                logger.debug("the log of pod %s cannot be read: %s", name, described(error))
        lines = log.strip().splitlines()[-count:] if count else []
        return "".join(f"\n{line}" for line in lines)[-_LOG_CHARACTERS:]

    def _is_useless(self, pod: dict[str, Any], ending: Ending | None) -> bool:
        """Tell whether Kubernetes would keep a pod that does no work, or wait minutes with it."""
        if "deletionTimestamp" in pod["metadata"]:
            return False
        evicted = ending is not None and ending.key == "pod"
        return evicted or waiting_reason(pod) == CRASH_LOOP

    def _discard(self, name: str) -> None:
        try:
            self._api.delete("pods", name, patiently=False)
        except ERRORS as error:
            logger.warning("Pod %s cannot be replaced now: %s", name, described(error))

    # -- problems --------------------------------------------------------------------------------

    def _note_trouble(self, name: str, trouble: str | None) -> None:
        with self._noting:
            if trouble is None:
                self._troubles.pop(name, None)
                return
            if name not in self._troubles:
                # One line for all pods. A pod's reason changes to and fro: ErrImagePull, back-off.
                reasons = {each.partition(":")[0] for each in self._troubles.values()}
                if trouble.partition(":")[0] not in reasons:
                    logger.warning("%s does not start: %s", name, trouble)
            self._troubles[name] = trouble

    def _on_start_timeout(self) -> None:
        with self._noting:
            reasons = "; ".join(dict.fromkeys(self._troubles.values())) or "no reason is known"
        self._fail(f"no runner started within {self._config.start_timeout:g} s: {reasons}")

    def _on_failure(self, error: Exception) -> None:
        text = described(error) if isinstance(error, ERRORS) else error_text(error)
        self._fail(f"the run cannot be watched: {text}")

    def _fail(self, failure: str) -> None:
        if not self._stop.is_set():
            self.failures.append(failure)
            self._stop.set()


class DeploymentFleet(Fleet):
    """Runners for the whole run: the pods of one Deployment."""

    owners = "deployments"

    def _start_owners(self) -> None:
        self._api.create("deployments", self._objects.deployment())
        if self._deadline.ident is None:
            self._deadline.start()

    def _on_owner(self, owner: dict[str, Any], gone: bool) -> None:
        name = owner["metadata"]["name"]
        if gone:
            if not self._stop.is_set():
                self._start_again(name)
            return
        conditions = owner.get("status", {}).get("conditions") or []
        failed = [
            each["message"]
            for each in conditions
            if each["type"] == "ReplicaFailure" and each["status"] == "True"
        ]
        self._note_trouble(name, failed[0] if failed else None)  # a quota, for one

    def _start_again(self, name: str) -> None:
        try:
            # The account of the run may read no Secret, as it could read all of the namespace.
            self._api.create("secrets", self._secret)
        except ERRORS as error:
            if status_of(error) != _CONFLICT:
                raise  # the watcher calls again
        else:
            self._api.delete("secrets", self._objects.name)
            self._fail(f"the Secret {self._objects.name} was deleted, and the runners with it")
            return
        logger.warning("Deployment %s was deleted; creating it again", name)
        self._start_owners()
