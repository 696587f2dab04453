"""Options of the strategy for Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig

__all__ = ["KubernetesConfig"]


class KubernetesConfig(ComponentConfig):
    """Options of :class:`~agl_exec_k8s.KubernetesExecutionStrategy`."""

    injects: ClassVar[frozenset[str]] = frozenset({"n_runners", "server_port"})

    image: str = Field(default="agl", kw_only=False)
    """Image of the runners. It has agl, the train file and the agent's code."""
    command: Sequence[str] = ("agl", "runner", "train.toml")
    """Command that runs the agent of a train file in the image; the strategy appends the address of
    the store server and options of ``agl runner``."""
    runners: Literal["deployment", "jobs"] = "deployment"
    """``deployment`` keeps runners for the whole run. ``jobs`` starts a Job for each rollout
    attempt, in a fresh pod."""
    n_runners: int = Field(default=1, ge=1)
    """Number of runners; with ``jobs`` the largest number of Jobs at a time."""
    runners_per_pod: int = Field(default=1, ge=1, le=256)
    """With ``deployment``: runner processes in one pod."""
    namespace: str | None = None
    """Namespace of the run. None takes that of the context, or of this pod."""
    kubeconfig: str | None = None
    """File with the address of the cluster. None takes the service account of this pod, and outside
    a cluster ``KUBECONFIG`` or ``~/.kube/config``."""
    context: str | None = None
    """Context of that file; None takes the current one."""
    resources: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Resources of each pod: ``{"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}``."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that may run the pods."""
    service_account: str | None = None
    """Service account of the pods. None gives them no access to the API server."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the runners. Secrets belong into ``env_from``."""
    env_from: list[dict[str, Any]] = Field(default_factory=list)
    """Secrets and ConfigMaps for the environment: ``[{"secretRef": {"name": "model-keys"}}]``."""
    labels: dict[str, str] = Field(default_factory=dict)
    """More labels of everything that the run creates."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the pod template. Tables are merged, and lists whose items have a name, item by
    item; the container is called ``runner``."""
    max_restarts: int = Field(default=3, ge=0)
    """Crashes per pod without a finished attempt in between; with more, the run fails."""
    start_timeout: float = Field(default=600.0, gt=0)
    """Longest wait for the first pod to run, in seconds; then the run fails with the reason."""
    node_timeout: float = Field(default=30.0, ge=0)
    """Seconds until Kubernetes replaces pods on a lost node."""
    job_timeout: float | None = Field(default=None, gt=0)
    """With ``jobs``: the longest life of a Job, in seconds; None sets no limit."""
    job_ttl: float = Field(default=60.0, ge=0)
    """With ``jobs``: seconds for which a finished Job is kept."""
    log_lines: int = Field(default=20, ge=0)
    """Lines of a dead pod's log that go into this log and into its attempts' error."""
    server_host: str | None = None
    """The interface that the store server listens on. None reads ``AGL_SERVER_HOST``, else takes
    this machine's address on the way to the cluster."""
    server_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the server. None reads ``AGL_SERVER_PORT``, else takes a free one."""
    store_url: str | None = None
    """URL at which pods reach the store server. None takes the one that it listens on."""
    api_timeout: float = Field(default=300.0, ge=0)
    """Longest wait for an API server that is away when the run starts or ends, in seconds. In
    between the run goes on without it."""
    graceful_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for algorithm and runners to end after the stop event, in seconds."""
    terminate_timeout: float = Field(default=10.0, ge=0)
    """Longest wait for pods that were deleted by force, in seconds."""
    reconnect_timeout: float = Field(default=60.0, ge=0)
    """Longest wait of runners for a lost server, in seconds."""
