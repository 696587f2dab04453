"""``k8s``: the runners as pods of a Kubernetes cluster, around a store server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_exec_k8s.config import KubernetesConfig
    from agl_exec_k8s.strategy import KubernetesExecutionStrategy

__all__ = ["KubernetesConfig", "KubernetesExecutionStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "KubernetesConfig": "agl_exec_k8s.config",
        "KubernetesExecutionStrategy": "agl_exec_k8s.strategy",
    },
)
