"""The controllers: Deployments, ReplicaSets, Jobs, garbage."""

from __future__ import annotations

import copy
import datetime
from typing import Any

from tests.plugins.agl_exec_k8s.cluster.objects import (
    Object,
    Objects,
    Refused,
    now,
    owned_by,
    owner_reference,
)


class Controllers:
    """Makes the objects what their owners ask for."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    async def run(self) -> None:
        while True:
            version = self.objects.version
            self.objects.collect_garbage()
            for deployment in self.objects.all("deployments"):
                self._keep_deployment(deployment)
            for replicas in self.objects.all("replicasets"):
                self._keep_replicas(replicas)
            for job in self.objects.all("jobs"):
                self._keep_job(job)
            if self.objects.version == version:
                # Deadlines of Jobs and quotas that are raised make no change.
                await self.objects.changed(0.2)

    # -- deployments -----------------------------------------------------------------------------

    def _keep_deployment(self, deployment: Object) -> None:
        owned = owned_by(self.objects.all("replicasets"), deployment)
        if not owned:
            name = deployment["metadata"]["name"]
            spec = copy.deepcopy(deployment["spec"])
            self.objects.create(
                "replicasets",
                {
                    "metadata": {
                        "name": f"{name}-7d9f",
                        "labels": spec["template"]["metadata"]["labels"],
                        "ownerReferences": [owner_reference(deployment)],
                    },
                    "spec": spec,
                },
            )
            return
        condition = owned[0].get("status", {}).get("conditions", [])
        if deployment.get("status", {}).get("conditions", []) != condition:
            deployment["status"] = {"conditions": copy.deepcopy(condition)}
            self.objects.touch("deployments", deployment)

    def _keep_replicas(self, replicas: Object) -> None:
        pods = [pod for pod in owned_by(self.objects.all("pods"), replicas) if is_active(pod)]
        known = replicas.get("status", {}).get("conditions", [])
        failure: list[Object] = []
        try:
            for _ in range(replicas["spec"]["replicas"] - len(pods)):
                self._create_pod(replicas)
        except Refused as refused:
            failure = known or [  # each try has another name of a pod in its message
                {
                    "type": "ReplicaFailure",
                    "status": "True",
                    "reason": "FailedCreate",
                    "message": refused.message,
                }
            ]
        if known != failure:
            replicas["status"] = {"conditions": failure}
            self.objects.touch("replicasets", replicas)

    def _create_pod(self, owner: Object) -> None:
        template = copy.deepcopy(owner["spec"]["template"])
        template["metadata"] |= {
            "generateName": f"{owner['metadata']['name']}-",
            "ownerReferences": [owner_reference(owner)],
        }
        self.objects.create("pods", template)

    # -- jobs ------------------------------------------------------------------------------------

    def _keep_job(self, job: Object) -> None:
        status = job.setdefault("status", {})
        pods = owned_by(self.objects.all("pods"), job)
        if ended := status.get("conditions"):
            if _age(ended[0]["lastTransitionTime"]) >= job["spec"]["ttlSecondsAfterFinished"]:
                self.objects.delete("jobs", job["metadata"]["name"])
            return
        if not status.get("startTime"):
            try:
                self._create_pod(job)
            except Refused as refused:
                self._tell(job, f"Error creating: {refused.message}")
                return  # it tries again
            status |= {"startTime": now(), "active": 1}
            self.objects.touch("jobs", job)
            return
        phases = {pod["status"]["phase"] for pod in pods}
        deadline = job["spec"].get("activeDeadlineSeconds")
        if "Succeeded" in phases:
            self._end_job(job, "Complete", "CompletionsReached")
        elif deadline is not None and _age(status["startTime"]) >= deadline:
            self._end_job(job, "Failed", "DeadlineExceeded")
            for pod in pods:
                self.objects.delete("pods", pod["metadata"]["name"])
        elif "Failed" in phases or not pods:  # backoffLimit is 0
            self._end_job(job, "Failed", "BackoffLimitExceeded")

    def _tell(self, job: Object, message: str) -> None:
        """Record the event of a refused pod; later ones of the same Job are counted in it."""
        name = f"{job['metadata']['name']}.refused"
        if self.objects.find("events", name) is None:
            event = {
                "metadata": {"name": name},
                "involvedObject": owner_reference(job),
                "type": "Warning",
                "reason": "FailedCreate",
                "message": message,
            }
            self.objects.create("events", event)

    def _end_job(self, job: Object, condition: str, reason: str) -> None:
        job["status"]["conditions"] = [
            {
                "type": condition,
                "status": "True",
                "reason": reason,
                "message": f"Job was ended: {reason}",
                "lastTransitionTime": now(),
            }
        ]
        self.objects.touch("jobs", job)


def is_active(pod: Object) -> bool:
    ended = pod["status"]["phase"] in ("Failed", "Succeeded")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _age(time: Any) -> float:
    then = datetime.datetime.fromisoformat(time)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()
