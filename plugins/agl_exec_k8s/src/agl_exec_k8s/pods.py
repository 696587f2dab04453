"""The end and the problems of a runner, read from the status of its pod. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agl_exec_k8s.manifests import CONTAINER

__all__ = [
    "COMPLETED",
    "CRASH_LOOP",
    "Ending",
    "ending_of",
    "has_run",
    "trouble_of",
    "waiting_reason",
]

COMPLETED: Final = "Completed (exit code 0)"
CRASH_LOOP: Final = "CrashLoopBackOff"
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
_LOST_NODE: Final = "DeletionByTaintManager"

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Ending:
    """The end of a runner's container.

    Attributes:
        key: Tells this end from others of the same pod.
        cause: The reason: ``OOMKilled (exit code 137)``.
        crashed: Whether the container failed by itself.
        restarted: Whether the next container of the pod runs already.
        previous: Whether its log is that of the previous container.
        message: The end of its log, if the status has it.
    """

    key: str
    cause: str
    crashed: bool
    restarted: bool = False
    previous: bool = False
    message: str = ""


def ending_of(pod: Pod) -> Ending | None:
    """Return the latest end of the runner; None if it has not ended."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):  # evicted, for one
        return Ending("pod", _joined(status["reason"], status.get("message")), crashed=False)
    if (lost := _condition(pod, "DisruptionTarget")) and lost.get("reason") == _LOST_NODE:
        return Ending("node", _joined("its node is lost", lost.get("message")), crashed=False)
    container = _runner(pod)
    state = container.get("state", {})
    ended = state.get("terminated")
    previous = ended is None
    if previous:
        ended = container.get("lastState", {}).get("terminated")
    if ended is None:
        return None
    code = ended.get("exitCode", 0)
    deleted = "deletionTimestamp" in pod["metadata"]
    cause = f"{ended.get('reason') or 'Error'} (exit code {code})"
    return Ending(
        ended.get("containerID") or str(ended.get("finishedAt")),
        cause,
        crashed=code != 0 and not deleted,
        restarted="running" in state,
        previous=previous,
        message=ended.get("message") or "",
    )


def has_run(pod: Pod) -> bool:
    """Tell whether the runner's container runs or has run."""
    state = _runner(pod).get("state", {})
    return "running" in state or ending_of(pod) is not None


def trouble_of(pod: Pod) -> str | None:
    """Return why the runner does not start: ``ImagePullBackOff: …``; None without a problem."""
    waiting = _runner(pod).get("state", {}).get("waiting", {})
    reason = waiting.get("reason")
    if reason and reason not in _STARTING and reason != CRASH_LOOP:
        return _joined(reason, waiting.get("message"))
    scheduled = _condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return _joined(scheduled.get("reason") or "not scheduled", scheduled.get("message"))
    return None


def waiting_reason(pod: Pod) -> str | None:
    """Return the reason for which the runner's container waits; None if it does not."""
    return _runner(pod).get("state", {}).get("waiting", {}).get("reason")


def _runner(pod: Pod) -> Mapping[str, Any]:
    containers = pod.get("status", {}).get("containerStatuses") or []
    return next((each for each in containers if each["name"] == CONTAINER), {})


def _condition(pod: Pod, kind: str) -> Mapping[str, Any] | None:
    conditions = pod.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), None)


def _joined(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
