"""A run in a pod: it logs in with the files of its service account, over TLS."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from agl_core.errors import LaunchError
from agl_exec_k8s import KubernetesExecutionStrategy, api
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_exec_k8s.cluster import Cluster
from tests.plugins.agl_exec_k8s.cluster.cluster import TOKEN
from tests.plugins.agl_exec_k8s.cluster.objects import NAMESPACE
from tests.plugins.agl_exec_k8s.conftest import AGENT, TRAIN
from tests.plugins.agl_exec_k8s.parts import make_batch, outcome, permissions

DRIVER = {
    "metadata": {"name": "driver-0"},
    "spec": {"containers": [{"name": "driver", "image": "not of this cluster"}]},
}


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service account, as a pod has it; also the key of the API server."""
    mount = tmp_path / "serviceaccount"
    mount.mkdir()
    certificate, key = mount / "ca.crt", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(key), "-out", str(certificate)),
            *("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    (mount / "token").write_text(TOKEN)
    (mount / "namespace").write_text(f"{NAMESPACE}\n")
    monkeypatch.setattr(api, "_MOUNT", mount)
    files = kubernetes.config.incluster_config
    monkeypatch.setattr(files, "SERVICE_TOKEN_FILENAME", str(mount / "token"))
    monkeypatch.setattr(files, "SERVICE_CERT_FILENAME", str(certificate))
    return mount


@pytest.fixture
def cluster(mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with TLS, in which this process is the pod ``driver-0``."""
    folder, image = tmp_path / "cluster", tmp_path / "agent"
    folder.mkdir()
    image.mkdir()
    (image / "agent.py").write_text(AGENT)
    (image / "train.toml").write_text(TRAIN)
    with Cluster(folder, (mount / "ca.crt", tmp_path / "key.pem")) as made:
        made.images["agent:1"] = image
        made.create("pods", DRIVER)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.port))
        monkeypatch.setenv("HOSTNAME", "driver-0")
        yield made


def strategy(**options: Any) -> Any:
    defaults = {"image": "agent:1", "graceful_timeout": 2, "terminate_timeout": 5}
    return KubernetesExecutionStrategy(**(defaults | options))


def test_a_run_in_a_pod_belongs_to_it(cluster: Cluster) -> None:
    owners: list[str] = []

    def look() -> None:
        (secret,) = cluster.objects("secrets")
        owners.extend(each["name"] for each in secret["metadata"]["ownerReferences"])

    store = InMemoryLightningStore()
    strategy().execute(make_batch([{"n": 1}], look), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"]
    assert owners == ["driver-0"]
    assert cluster.calls() <= permissions()
    assert cluster.left() == ["pods/driver-0"]


def test_a_token_that_is_not_valid_is_named(cluster: Cluster, mount: Path) -> None:
    (mount / "token").write_text("of another cluster")
    with pytest.raises(LaunchError, match="Unauthorized"):
        strategy().execute(make_batch([{"n": 1}]), None, InMemoryLightningStore())
    assert cluster.left() == ["pods/driver-0"]


def test_a_certificate_of_another_authority_is_refused(
    cluster: Cluster, mount: Path, tmp_path: Path
) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(tmp_path / "other.pem"), "-out", str(mount / "ca.crt")),
            *("-subj", "/CN=another"),
        ],
        check=True,
        capture_output=True,
    )
    made = strategy(api_timeout=0)
    with pytest.raises(LaunchError, match="certificate"):
        made.execute(make_batch([{"n": 1}]), None, InMemoryLightningStore())
    assert cluster.left() == ["pods/driver-0"]
