"""Manifests of the objects of a run. Pure functions: options in, JSON out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agl_exec_k8s.config import KubernetesConfig

__all__ = ["CONTAINER", "MANAGER", "RunObjects", "merged", "reference"]

CONTAINER: Final = "runner"
MANAGER: Final = "agl-exec-k8s"
_TOKEN: Final = "token"  # noqa: S105 -- the key of the Secret
_POD_UID: Final = "AGL_POD_UID"
_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

Manifest = dict[str, Any]


@dataclass
class RunObjects:
    """The objects of one run.

    Attributes:
        name: Name of the run in the cluster.
        namespace: Their namespace.
        config: Options of the strategy.
        url: URL at which pods reach the store server.
        owner: Reference to the object with which everything else is deleted.
    """

    name: str
    namespace: str
    config: KubernetesConfig
    url: str
    owner: Manifest | None = field(default=None)

    @property
    def selector(self) -> str:
        """The label selector of everything that belongs to the run."""
        return ",".join(f"{key}={value}" for key, value in self._identity.items())

    @property
    def most_pods(self) -> int:
        """Largest number of pods at a time: of the Deployment, or of Jobs."""
        config = self.config
        runners = config.runners_per_pod if config.runners == "deployment" else 1
        return math.ceil(config.n_runners / runners)

    def secret(self, token: str) -> Manifest:
        """Return the Secret with the runners' token; it owns the other objects."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata(self.name),
            "type": "Opaque",
            "stringData": {_TOKEN: token},
        }

    def deployment(self) -> Manifest:
        """Return the Deployment of the runners."""
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self._metadata(self.name),
            "spec": {
                "replicas": self.most_pods,
                "selector": {"matchLabels": self._identity},
                "template": self._template("Always", self.config.runners_per_pod),
            },
        }

    def job(self, name: str) -> Manifest:
        """Return a Job whose runner does one rollout attempt."""
        config = self.config
        spec: Manifest = {
            # The store decides whether a rollout is run again, and a new Job does it.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": math.ceil(config.job_ttl),
            "template": self._template("Never", 1, "--max-rollouts", "1"),
        }
        if config.job_timeout is not None:
            spec["activeDeadlineSeconds"] = math.ceil(config.job_timeout)
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(name),
            "spec": spec,
        }

    @property
    def _identity(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/managed-by": MANAGER,
            "app.kubernetes.io/instance": self.name,
        }

    @property
    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "agl-runner", **self.config.labels, **self._identity}

    def _metadata(self, name: str) -> Manifest:
        metadata: Manifest = {"name": name, "namespace": self.namespace, "labels": self._labels}
        if self.owner is not None:
            metadata["ownerReferences"] = [self.owner]
        return metadata

    def _template(self, restart_policy: str, runners: int, *options: str) -> Manifest:
        config = self.config
        # The train file in the image may have options of another strategy; this replaces them.
        strategy = (
            f"strategy={{type='cs', worker_seed='$({_POD_UID})', "
            f"graceful_timeout={config.graceful_timeout}, "
            f"reconnect_timeout={config.reconnect_timeout}}}"
        )
        container: Manifest = {
            "name": CONTAINER,
            "image": config.image,
            "command": [
                *config.command,
                *("--server", self.url, "--n-runners", str(runners), *options),
                # A pod that runs and does not reach the server ends with the reason.
                *("--connect-timeout", str(config.start_timeout)),
                *("--set", strategy),
            ],
            "env": [
                {
                    "name": "AGL_AUTH_TOKEN",
                    "valueFrom": {"secretKeyRef": {"name": self.name, "key": _TOKEN}},
                },
                {"name": _POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                *({"name": name, "value": value} for name, value in config.env.items()),
            ],
            "envFrom": config.env_from,
            "resources": config.resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            # A container that fails without a word leaves the end of its log in its status.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        spec: Manifest = {
            "restartPolicy": restart_policy,
            # Time to finish, then to clean up after the cancellation.
            "terminationGracePeriodSeconds": math.ceil(2 * config.graceful_timeout) + 5,
            "nodeSelector": config.node_selector,
            "automountServiceAccountToken": config.service_account is not None,
            "tolerations": [
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": math.ceil(config.node_timeout),
                }
                for key in _LOST_NODE
            ],
            "containers": [container],
        }
        if config.service_account is not None:
            spec["serviceAccountName"] = config.service_account
        template = merged({"metadata": {"labels": self._labels}, "spec": spec}, config.pod_template)
        # The run finds its pods by these labels, so an override must not change them.
        template["metadata"]["labels"].update(self._identity)
        return template


def reference(kind: str, manifest: Mapping[str, Any]) -> Manifest:
    """Return an owner reference to an object that exists.

    Args:
        kind: Its kind, of the API version ``v1``.
        manifest: The object, as the API server returned it.
    """
    metadata = manifest["metadata"]
    return {
        "apiVersion": "v1",
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def merged(base: Any, override: Any) -> Any:
    """Return a manifest with overrides.

    Tables are merged. Lists whose items have names are merged item by item; other lists and values
    are replaced.
    """
    if isinstance(base, dict) and isinstance(override, dict):
        result = dict(base)
        for key, value in override.items():
            result[key] = merged(base[key], value) if key in base else value
        return result
    if _named(base) and _named(override):
        by_name = {item["name"]: item for item in base}
        for item in override:
            by_name[item["name"]] = merged(by_name.get(item["name"], {}), item)
        return list(by_name.values())
    return override


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and "name" in item for item in value
    )
