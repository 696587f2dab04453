"""Hooks of this package: the backend ``prometheus``, its page, and ``agl prometheus``."""

from agl_core.plugins import AppSpec, CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> ComponentSpec:
    return ComponentSpec(
        kind="metrics",
        name="prometheus",
        factory="agl_metrics_prometheus:PrometheusMetrics",
        config="agl_metrics_prometheus:PrometheusConfig",
        summary="Metrics that Prometheus scrapes, merged from all processes",
        api=1,
    )


@hookimpl
def agl_app() -> AppSpec:
    return AppSpec(
        name="prometheus",
        path="/v1/prometheus",
        factory="agl_metrics_prometheus.page:metrics_page",
        summary="Metrics for Prometheus",
        api=1,
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="prometheus",
        target="agl_metrics_prometheus.cli:prometheus",
        summary="Serve the metrics of other processes for Prometheus",
        api=1,
    )
