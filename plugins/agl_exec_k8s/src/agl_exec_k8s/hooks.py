"""Hooks of execution on Kubernetes: the strategy."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="k8s",
        factory="agl_exec_k8s:KubernetesExecutionStrategy",
        config="agl_exec_k8s.config:KubernetesConfig",
        summary="Runners as pods of a Kubernetes cluster, around a store server",
        api=1,
    )
