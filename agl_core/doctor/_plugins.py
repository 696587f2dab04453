"""Loads each plugin in a separate process, and runs the checks that plugins provide."""

from __future__ import annotations

from agl_core.doctor._findings import Finding, Severity
from agl_core.plugins import get_registry, import_extensions
from agl_core.plugins._doctor import examine

__all__ = ["check_plugins", "run_plugin_checks"]

_SEVERITIES: dict[str, Severity] = {"disabled": "info", "conflict": "warning"}


def check_plugins(timeout: float = 60.0) -> list[Finding]:
    """Load every plugin, and build those components that need no options.

    Args:
        timeout: Time limit of each plugin, in seconds.
    """
    registry = get_registry()
    examined = examine(registry.records, timeout=timeout)
    good = [plugin.key for plugin in examined if plugin.status == "ok"]
    return [
        Finding("ok", "plugins", f"{len(good)} plugins load", ids=tuple(good)),
        *(Finding("warning", "switches", warning) for warning in registry.warnings),
        *(
            Finding(
                _SEVERITIES.get(plugin.status, "error"),
                "plugin",
                f"{plugin.key} of {plugin.dist} {plugin.version} is {plugin.status}: {plugin.note}",
                f"pip install --upgrade {plugin.dist}, or AGL_DISABLE_PLUGINS={plugin.key}",
                (plugin.key,),
            )
            for plugin in examined
            if plugin.status != "ok"
        ),
    ]


def run_plugin_checks() -> list[Finding]:
    """Run the checks of all installed plugins, in order of their names.

    A check that raises becomes a finding; the remaining checks still run.
    """
    findings: list[Finding] = []
    for record, check in import_extensions("check"):
        try:
            findings += check()
        except Exception as error:
            findings.append(
                Finding(
                    "error",
                    "check",
                    f"{record.key} of {record.origin} failed: {type(error).__name__}: {error}",
                    f"pip install --upgrade {record.dist}, or AGL_DISABLE_PLUGINS={record.key}",
                    (record.key,),
                )
            )
    return findings
