"""The life of a run on Kubernetes: its objects, its pods, its end; nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import LaunchError
from agl_core.execution import ExecutionEvent
from agl_core.store import LightningStore
from agl_exec_k8s import KubernetesExecutionStrategy
from agl_exec_k8s.api import Api
from agl_exec_k8s.config import KubernetesConfig
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_exec_k8s.cluster import Cluster
from tests.plugins.agl_exec_k8s.parts import make_batch, outcome, permissions, working_pod


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


def test_pods_run_the_agent_of_the_image(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    strategy = make_strategy(2, env={"FACTOR": "2"}, labels={"team": "blue"})
    seen: list[Any] = []

    def look() -> None:
        cluster.wait_until(lambda: len(cluster.running()) == 2)
        seen.extend(cluster.objects(kind) for kind in ("secrets", "deployments", "pods"))

    strategy.execute(make_batch([{"n": i} for i in range(10)], look), None, store)
    statuses, errors, rewards = asyncio.run(outcome(store))
    assert statuses == ["succeeded"] * 10
    assert errors == []
    assert sorted(reward or 0 for reward in rewards) == pytest.approx([i / 5 for i in range(10)])
    assert not strategy.interrupted
    assert cluster.left() == []
    codes = cluster.exit_codes()
    assert len(codes) == 2
    assert set(codes) <= {0, 130, 143}  # by the end of the run, or by the SIGTERM of the deletion

    (secret,), (deployment,), pods = seen
    assert secret["stringData"]["token"] not in str(deployment) + str(pods)
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == secret["metadata"]["uid"]
    assert all(pod["metadata"]["labels"]["team"] == "blue" for pod in pods)


def test_one_pod_can_have_several_runners(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    strategy = make_strategy(3, runners_per_pod=2)
    counts: list[int] = []

    def count() -> None:
        cluster.wait_until(lambda: len(cluster.running()) == 2)
        counts.append(len(cluster.objects("pods")))

    strategy.execute(make_batch([{"n": 1}] * 8, count), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 8
    assert counts == [2]


# -- ends of a run ---------------------------------------------------------------------------------


def test_a_failed_algorithm_leaves_nothing_behind(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.to_thread(cluster.wait_until, lambda: bool(cluster.running()))
        raise ZeroDivisionError("the algorithm failed")

    with pytest.raises(ZeroDivisionError, match="the algorithm failed"):
        make_strategy(1).execute(algorithm, None, store)
    assert cluster.left() == []


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_leaves_nothing_behind(
    cluster: Cluster, make_strategy: Any, store: LightningStore, presses: int
) -> None:
    strategy = make_strategy(1, graceful_timeout=1 if presses == 1 else 30)

    def press() -> None:
        pod = working_pod(cluster)
        os.kill(os.getpid(), signal.SIGINT)
        if presses == 2:
            ending = "deletionTimestamp"
            cluster.wait_until(
                lambda: any(ending in each["metadata"] for each in cluster.found("pods"))
            )
            assert pod in [each["metadata"]["name"] for each in cluster.objects("pods")]
            os.kill(os.getpid(), signal.SIGINT)

    # Not in the loop's executor: the end of the algorithm would wait for it.
    pressing = threading.Thread(target=press)
    strategy.execute(make_batch([{"n": 1, "hold": 60}], pressing.start), None, store)
    pressing.join()
    assert strategy.interrupted
    assert cluster.left() == []
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses in (["failed"], ["requeuing"])
    assert len(errors) == 1


def test_a_run_can_end_before_its_pods_start(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    make_strategy(2).execute(make_batch([]), None, store)
    assert cluster.left() == []


# -- what the cluster refuses ----------------------------------------------------------------------


def test_a_refused_deployment_is_explained(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    cluster.deny("deployments")
    with pytest.raises(LaunchError, match="the user cannot create deployments"):
        make_strategy(1).execute(make_batch([]), None, store)
    assert cluster.left() == []


def test_wrong_overrides_are_explained(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    strategy = make_strategy(1, pod_template={"spec": {"nodeName": 7}})
    with pytest.raises(LaunchError, match="nodeName"):
        strategy.execute(make_batch([]), None, store)
    assert cluster.left() == []


def test_a_quota_leaves_the_run_with_fewer_pods(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.limit("pods", 1)

    def wait() -> None:
        cluster.wait_until(lambda: "exceeded quota" in caplog.text)

    make_strategy(3).execute(make_batch([{"n": 1}] * 3, wait), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 3
    assert cluster.left() == []


@pytest.mark.parametrize(
    ("image", "quota", "reason"),
    [
        ("missing:1", 9, 'ImagePullBackOff: Back-off pulling image "missing:1"'),
        ("agent:1", 0, "exceeded quota"),
    ],
)
def test_a_run_without_a_pod_fails_with_the_reason(
    cluster: Cluster,
    make_strategy: Any,
    store: LightningStore,
    image: str,
    quota: int,
    reason: str,
) -> None:
    cluster.limit("pods", quota)
    strategy = make_strategy(2, image=image, start_timeout=3)
    with pytest.raises(RuntimeError, match=f"no runner started within 3 s: .*{reason}"):
        strategy.execute(make_batch([{"n": 1}]), None, store)
    assert cluster.left() == []


# -- pods that end ---------------------------------------------------------------------------------


def test_a_killed_pod_is_replaced_and_its_attempt_says_why(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    def kill() -> None:
        cluster.kill(working_pod(cluster), "OOMKilled")

    make_strategy(1).execute(make_batch([{"n": 7, "hold": 1}], kill), None, store)
    assert cluster.calls() <= permissions()
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses == ["succeeded"]
    (error,) = errors
    assert error.startswith("its runner died: OOMKilled (exit code 137)")
    assert "works on 7" in error
    assert "works on 7" in caplog.text
    assert cluster.left() == []


def test_an_evicted_pod_is_replaced(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    evicted: list[str] = []

    def evict() -> None:
        evicted.append(working_pod(cluster))
        cluster.kill(evicted[0], "Evicted")
        cluster.wait_until(
            lambda: evicted[0] not in [each["metadata"]["name"] for each in cluster.found("pods")]
        )

    make_strategy(1).execute(make_batch([{"n": 7, "hold": 1}], evict), None, store)
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses == ["succeeded"]
    (error,) = errors
    assert error.startswith("its runner died: Evicted: The node was low on resource: memory.")
    assert "works on 7" in error
    assert cluster.left() == []


@pytest.mark.parametrize("kind", ["pods", "deployments"])
def test_what_others_delete_is_made_again(
    cluster: Cluster, make_strategy: Any, store: LightningStore, kind: str
) -> None:
    def delete() -> None:
        pod = working_pod(cluster)
        name = pod if kind == "pods" else cluster.objects("deployments")[0]["metadata"]["name"]
        cluster.delete(kind, name)

    make_strategy(1, graceful_timeout=0.5).execute(
        make_batch([{"n": 1, "hold": 3}, {"n": 2}], delete), None, store
    )
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 2
    assert cluster.left() == []


def test_a_deleted_secret_ends_the_run(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    def delete() -> None:
        cluster.wait_until(lambda: bool(cluster.running()))
        cluster.delete("secrets", cluster.objects("secrets")[0]["metadata"]["name"])

    with pytest.raises(RuntimeError, match=r"the Secret agl-.* was deleted"):
        make_strategy(1).execute(make_batch([{"n": 1, "hold": 60}], delete), None, store)
    assert cluster.left() == []


def test_the_pod_of_the_run_owns_its_objects(
    cluster: Cluster, make_strategy: Any, store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = {"name": "run", "image": "missing:1"}
    pod = cluster.create("pods", {"metadata": {"name": "run"}, "spec": {"containers": [container]}})
    # There is no service account here, but a pod with the name of this host.
    monkeypatch.setattr("agl_exec_k8s.api.in_cluster", lambda: True)
    monkeypatch.setenv("HOSTNAME", "run")
    owners: list[Any] = []

    def look() -> None:
        (secret,) = cluster.objects("secrets")
        owners.extend(secret["metadata"]["ownerReferences"])

    make_strategy(1).execute(make_batch([], look), None, store)
    assert [owner["uid"] for owner in owners] == [pod["metadata"]["uid"]]
    assert cluster.left() == ["pods/run"]


def test_runners_that_crash_again_and_again_end_the_run(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    strategy = make_strategy(1, image="broken:1", max_restarts=2)
    with pytest.raises(RuntimeError, match="the model key is missing") as raised:
        strategy.execute(make_batch([{"n": 1}]), None, store)
    assert "runners die again and again" in str(raised.value)
    assert cluster.left() == []


# -- an API server that is away --------------------------------------------------------------------


def test_the_run_goes_on_without_the_api_server(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = float(os.environ.get("AGL_TEST_AWAY_SECONDS", "2"))

    def go_away() -> None:
        pod = working_pod(cluster)
        cluster.go_away()
        cluster.kill(pod, "OOMKilled")  # restarted by its node
        threading.Event().wait(seconds)
        cluster.come_back()

    make_strategy(2).execute(
        make_batch([{"n": i, "hold": 1} for i in range(6)], go_away), None, store
    )
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses == ["succeeded"] * 6
    assert len(errors) == 1
    assert errors[0].startswith("its runner died")
    assert "The API server is away; the run goes on" in caplog.text
    assert cluster.left() == []


def test_the_end_of_a_run_waits_for_the_api_server(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    def go_away() -> None:
        cluster.wait_until(lambda: bool(cluster.running()))
        cluster.go_away()
        threading.Timer(1.5, cluster.come_back).start()

    make_strategy(1).execute(make_batch([], go_away), None, store)
    assert cluster.left() == []


def test_what_cannot_be_deleted_is_named(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    def go_away() -> None:
        cluster.wait_until(lambda: bool(cluster.running()))
        cluster.go_away()

    make_strategy(1, api_timeout=1).execute(make_batch([], go_away), None, store)
    assert "kubectl delete deployments,pods,secrets --namespace agl --selector" in caplog.text
    cluster.come_back()


def test_a_lost_reply_does_not_stop_the_run(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    cluster.lose_reply()
    make_strategy(1).execute(make_batch([{"n": 1}]), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"]
    assert cluster.calls() <= permissions()
    assert cluster.left() == []


def test_a_watch_starts_again_when_its_version_is_forgotten(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    def forget() -> None:
        pod = working_pod(cluster)
        cluster.go_away()
        cluster.kill(pod, "OOMKilled")
        cluster.forget_history()
        cluster.come_back()

    make_strategy(1).execute(make_batch([{"n": 1, "hold": 1}], forget), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"]
    assert cluster.left() == []


def test_a_context_can_be_chosen_where_none_is_current(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        """
        apiVersion: v1
        kind: Config
        clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
        users: [{name: u, user: {token: t}}]
        contexts: [{name: gpu, context: {cluster: c, user: u, namespace: train}}]
        """
    )
    api = Api(KubernetesConfig(kubeconfig=str(file), context="gpu"))
    assert (api.namespace, api.port) == ("train", 1)


def test_without_a_cluster_the_run_does_not_start(tmp_path: Path, store: LightningStore) -> None:
    strategy = KubernetesExecutionStrategy(kubeconfig=str(tmp_path / "none"))
    with pytest.raises(LaunchError, match="no Kubernetes cluster is configured"):
        strategy.execute(make_batch([]), None, store)  # type: ignore[arg-type]


# -- stores and train files ------------------------------------------------------------------------


async def test_the_store_can_have_a_server_already(cluster: Cluster, make_strategy: Any) -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    try:
        client = LightningStoreClient(server.endpoint)
        execute = make_strategy(1).execute
        await asyncio.to_thread(execute, make_batch([{"n": 1}, {"n": 2}]), None, client)
        assert [each.status for each in await server.query_rollouts()] == ["succeeded"] * 2
        await client.close()
    finally:
        await server.stop()
    assert cluster.left() == []


def test_a_train_file_runs_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("agl")), "train", "train.toml"),
            *("--set", "trainer.n_runners=2"),
        ],
        cwd=cluster.images["agent:1"],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3/3" in ended.stdout + ended.stderr
    assert cluster.left() == []
