"""A small Kubernetes: API server, controllers, and a kubelet that starts real processes."""

from tests.plugins.agl_exec_k8s.cluster.cluster import Cluster

__all__ = ["Cluster"]
