"""Hooks of this package: the backends ``console`` and ``multi``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="metrics",
            name="console",
            factory="agl_metrics_console:ConsoleMetrics",
            config="agl_metrics_console:ConsoleConfig",
            summary="Rates and percentiles as lines of the log",
            api=1,
        ),
        ComponentSpec(
            kind="metrics",
            name="multi",
            factory="agl_metrics_console:MultiMetrics",
            config="agl_metrics_console:MultiConfig",
            summary="Several backends as one",
            api=1,
        ),
    ]
