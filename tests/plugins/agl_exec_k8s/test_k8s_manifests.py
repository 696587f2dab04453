"""Manifests: valid for every version of Kubernetes, and open to overrides."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from agl_exec_k8s import KubernetesConfig
from agl_exec_k8s.manifests import RunObjects, merged

VERSIONS = ("1.29.0", "1.33.0", kubernetes_validate.latest_version())
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u", "controller": False}

FULL: dict[str, Any] = {
    "n_runners": 9,
    "runners_per_pod": 4,
    "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}},
    "node_selector": {"pool": "runners"},
    "service_account": "agent",
    "env": {"MODE": "train"},
    "env_from": [{"secretRef": {"name": "keys"}}],
    "labels": {"team": "blue"},
    "job_timeout": 600,
    "pod_template": {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [
                {"name": "runner", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "side", "image": "side:1"},
            ],
        },
    },
}


def objects(**options: Any) -> RunObjects:
    return RunObjects(
        "agl-1", "training", KubernetesConfig(**options), "http://10.0.0.1:4747", OWNER
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [{}, FULL], ids=["defaults", "all options"])
def test_manifests_are_valid(version: str, options: dict[str, Any]) -> None:
    made = objects(**options)
    for manifest in (made.secret("t"), made.deployment(), made.job("agl-1-2")):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_options_are_in_the_deployment() -> None:
    spec = objects(**FULL).deployment()["spec"]
    assert spec["replicas"] == 3
    pod = spec["template"]["spec"]
    runner, side = pod["containers"]
    assert side == {"name": "side", "image": "side:1"}
    assert runner["command"][:5] == [
        "agl",
        "runner",
        "train.toml",
        "--server",
        "http://10.0.0.1:4747",
    ]
    waits = runner["command"].index("--connect-timeout")
    assert runner["command"][waits + 1] == "600.0"
    assert runner["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert runner["resources"]["limits"] == {"memory": "1Gi"}
    assert runner["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "MODE", "value": "train"} in runner["env"]
    assert pod["serviceAccountName"] == "agent"
    assert pod["automountServiceAccountToken"] is True
    assert pod["nodeSelector"] == {"pool": "runners"}


def test_overrides_cannot_hide_pods_from_their_run() -> None:
    labels = {"app.kubernetes.io/instance": "other", "mine": "1"}
    deployment = objects(pod_template={"metadata": {"labels": labels}}).deployment()
    found = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= found.items()
    assert found["mine"] == "1"


def test_the_token_is_only_in_the_secret() -> None:
    made = objects()
    assert made.secret("hush")["stringData"] == {"token": "hush"}
    (token,) = (
        item
        for item in made.deployment()["spec"]["template"]["spec"]["containers"][0]["env"]
        if item["name"] == "AGL_AUTH_TOKEN"
    )
    assert token["valueFrom"] == {"secretKeyRef": {"name": "agl-1", "key": "token"}}


def test_overrides_are_merged() -> None:
    base = {"a": 1, "items": [{"name": "x", "n": 1}, {"name": "y"}], "args": ["1"]}
    override = {"b": 2, "items": [{"name": "x", "m": 2}, {"name": "z"}], "args": ["2", "3"]}
    assert merged(base, override) == {
        "a": 1,
        "b": 2,
        "items": [{"name": "x", "n": 1, "m": 2}, {"name": "y"}, {"name": "z"}],
        "args": ["2", "3"],
    }
    assert base["items"] == [{"name": "x", "n": 1}, {"name": "y"}]
