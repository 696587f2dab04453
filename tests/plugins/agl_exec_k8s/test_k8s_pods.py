"""The end and the problems of a runner, read from statuses of pods."""

from __future__ import annotations

from typing import Any

import pytest

from agl_exec_k8s.pods import Ending, ending_of, has_run, trouble_of

KILLED = {"exitCode": 137, "reason": "OOMKilled", "containerID": "c1"}


def pod(
    state: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    container = {"name": "runner", "state": state or {}, "lastState": last or {}}
    side = {"name": "side", "state": {"terminated": {"exitCode": 1}}}
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": [side, container], **status}}


def test_a_container_that_ended() -> None:
    assert ending_of(pod({"terminated": KILLED})) == Ending("c1", "OOMKilled (exit code 137)", True)


def test_a_container_that_was_restarted() -> None:
    found = ending_of(pod({"running": {}}, {"terminated": KILLED}))
    assert found is not None
    assert (found.key, found.restarted, found.previous) == ("c1", True, True)


def test_a_container_that_waits_for_its_restart() -> None:
    found = ending_of(pod({"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": KILLED}))
    assert found is not None
    assert (found.key, found.restarted, found.previous) == ("c1", False, True)


def test_the_end_of_a_deleted_pod_is_not_a_crash() -> None:
    ended = pod({"terminated": KILLED})
    ended["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = ending_of(ended)
    assert found is not None
    assert not found.crashed


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            "Evicted: low on memory",
        ),
        (
            {
                "phase": "Running",
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "reason": "DeletionByTaintManager",
                        "message": "node is unreachable",
                    }
                ],
            },
            "its node is lost: node is unreachable",
        ),
    ],
)
def test_pods_that_the_cluster_ends(status: dict[str, Any], cause: str) -> None:
    found = ending_of(pod({"running": {}}, **status))
    assert found is not None
    assert (found.cause, found.crashed, found.restarted) == (cause, False, False)


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        (pod({"waiting": {"reason": "ErrImagePull", "message": "no"}}), "ErrImagePull: no"),
        (pod({"waiting": {"reason": "ContainerCreating"}}), None),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}), None),
        (pod({"running": {}}), None),
        (
            {
                "metadata": {},
                "status": {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/3 nodes are available",
                        }
                    ]
                },
            },
            "Unschedulable: 0/3 nodes are available",
        ),
        ({"metadata": {}}, None),
    ],
)
def test_why_a_pod_does_not_start(found: dict[str, Any], trouble: str | None) -> None:
    assert trouble_of(found) == trouble


def test_whether_a_pod_has_run() -> None:
    assert has_run(pod({"running": {}}))
    assert has_run(pod({"terminated": KILLED}))
    assert not has_run(pod({"waiting": {"reason": "ContainerCreating"}}))
    assert not has_run({"metadata": {}, "status": {"phase": "Pending"}})
