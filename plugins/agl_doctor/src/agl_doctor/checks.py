"""Loads each plugin in a separate process, and runs the checks that plugins provide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.doctor import Finding, Severity
from agl_core.errors import MissingDependencyError, StoreUnavailableError
from agl_core.plugins import CheckSpec, PluginRecord, get_registry, package_of
from agl_doctor.examine import Examined, examine

if TYPE_CHECKING:
    from agl_core.store import LightningStore

_SEVERITIES: dict[str, Severity] = {"disabled": "info", "conflict": "warning"}


def check_plugins(timeout: float = 60.0) -> list[Finding]:
    """Load every plugin, and build those components that need no options.

    Args:
        timeout: Time limit of each plugin, in seconds.
    """
    registry = get_registry()
    examined = examine(registry.records, timeout=timeout)
    good = [plugin.key for plugin in examined if plugin.status in ("ok", "warning")]
    return [
        Finding("ok", "plugins", f"{len(good)} plugins load", ids=tuple(good)),
        *(Finding("warning", "switches", warning) for warning in registry.warnings),
        *(_finding(plugin) for plugin in examined if plugin.status != "ok"),
    ]


def _finding(plugin: Examined) -> Finding:
    who = f"{plugin.key} of {plugin.dist} {plugin.version}"
    if plugin.status == "warning":
        todo = f"tell the author of {plugin.dist}"
        return Finding("warning", "plugin", f"{who}: {plugin.note}", todo, (plugin.key,))
    return Finding(
        _SEVERITIES.get(plugin.status, "error"),
        "plugin",
        f"{who} is {plugin.status}: {plugin.note}",
        f"pip install --upgrade {plugin.dist}, or AGL_DISABLE_PLUGINS={plugin.key}",
        (plugin.key,),
    )


def run_plugin_checks() -> list[Finding]:
    """Run the environment checks of all installed plugins, in order of their names.

    A check that raises becomes a finding; the remaining checks still run.
    """
    findings: list[Finding] = []
    for record, spec in _checks(reads_store=False):
        try:
            findings += spec.resolve(record)()
        except Exception as error:
            findings.append(_failed(record, error))
    return findings


async def run_store_checks(store: LightningStore, **options: Any) -> list[Finding]:
    """Run the store checks of all installed plugins, in order of their names.

    Args:
        store: The store.
        options: What each check gets besides; see :class:`~agl_core.plugins.CheckSpec`.

    Raises:
        MissingDependencyError: No plugin with a store check is installed.
        StoreUnavailableError: The store cannot be reached.
    """
    checks = _checks(reads_store=True)
    if not checks:
        raise MissingDependencyError("a check of a store", pip=package_of("check", "store"))
    findings: list[Finding] = []
    for record, spec in checks:
        try:
            findings += await spec.resolve(record)(store, **options)
        except StoreUnavailableError:
            raise
        except Exception as error:
            findings.append(_failed(record, error))
    return findings


def _checks(*, reads_store: bool) -> list[tuple[PluginRecord, CheckSpec]]:
    return [
        (record, spec)
        for record, spec in get_registry().extensions("check")
        if isinstance(spec, CheckSpec) and spec.reads_store == reads_store
    ]


def _failed(record: PluginRecord, error: Exception) -> Finding:
    return Finding(
        "error",
        "check",
        f"{record.key} of {record.origin} failed: {type(error).__name__}: {error}",
        f"pip install --upgrade {record.dist}, or AGL_DISABLE_PLUGINS={record.key}",
        (record.key,),
    )
