"""Which crashes end a run, and what its threads note at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agl_core.execution import ThreadingEvent
from agl_exec_k8s.api import Api
from agl_exec_k8s.config import KubernetesConfig
from agl_exec_k8s.jobs import JobFleet
from agl_exec_k8s.manifests import RunObjects
from agl_store_memory import InMemoryLightningStore


class Jobs:
    """Jobs of a run, whose pods end one after the other.

    Args:
        n_runners: Number of runners of the run.
        options: More options of the strategy.
    """

    def __init__(self, n_runners: int, **options: Any) -> None:
        config = KubernetesConfig(
            kubeconfig="unused", runners="jobs", n_runners=n_runners, log_lines=0, **options
        )
        objects = RunObjects("agl-1", "agl", config, "http://store")
        self.ended = 0
        api = object.__new__(Api)  # no call of it is made
        store = InMemoryLightningStore()
        self.fleet = JobFleet(config, api, objects, ThreadingEvent(), self._release, store)
        self._finished: set[str] = set()

    def end(self, code: int) -> None:
        """Let the next pod end; one with the exit code 0 has finished its attempt."""
        uid = f"pod-{self.ended}"
        self.ended += 1
        if code == 0:
            self._finished.add(uid)
        reason = "OOMKilled" if code else "Completed"
        ended = {"exitCode": code, "reason": reason, "containerID": uid}
        pod = {
            "metadata": {"name": uid, "uid": uid, "ownerReferences": [{"name": f"job-{uid}"}]},
            "status": {"containerStatuses": [{"name": "runner", "state": {"terminated": ended}}]},
        }
        self.fleet._on_pod(pod, False)  # pyright: ignore[reportPrivateUsage]
        self.fleet._on_pod(pod, True)  # pyright: ignore[reportPrivateUsage]

    def _release(self, uid: str, reason: str) -> bool:
        progressed = uid in self._finished
        self._finished.discard(uid)
        return progressed


def test_jobs_that_succeed_are_progress() -> None:
    jobs = Jobs(1, max_restarts=1)
    for code in (137, 0, 137, 0, 137):
        jobs.end(code)
    assert jobs.fleet.failures == []
    jobs.end(137)
    (failure,) = jobs.fleet.failures
    assert "runners die again and again" in failure


def test_each_job_may_crash() -> None:
    jobs = Jobs(4, max_restarts=1, runners_per_pod=4)  # of no effect for Jobs
    for _ in range(4):
        jobs.end(137)
    assert jobs.fleet.failures == []


def test_threads_note_troubles_at_the_same_time() -> None:
    fleet = Jobs(1).fleet
    names = [f"job-{i}" for i in range(300)]

    def note(trouble: str | None) -> None:
        for _ in range(60):
            for name in names:
                fleet._note_trouble(name, trouble)  # pyright: ignore[reportPrivateUsage]

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            noting = [pool.submit(note, trouble) for trouble in ("exceeded quota: q", None)]
            for each in noting:
                each.result()
    finally:
        sys.setswitchinterval(usual)
