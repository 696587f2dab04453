"""Loads each plugin in a separate process, and runs the checks that plugins provide."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from agl_core.doctor import Finding, Severity
from agl_core.errors import StoreUnavailableError, error_text
from agl_core.plugins import CheckSpec, PluginRecord, get_registry, missing_package, package_of
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
        f"upgrade {plugin.dist}, or AGL_DISABLE_PLUGINS={plugin.key}",
        (plugin.key,),
    )


def run_plugin_checks(timeout: float = 60.0) -> list[Finding]:
    """Run the environment checks of all installed plugins, in order of their names.

    A check that raises, or that does not end in time, becomes a finding that names the plugin; the
    remaining checks still run.

    Args:
        timeout: Time limit of each check, in seconds.
    """
    return [
        finding
        for record, spec in _checks(reads_store=False)
        for finding in _run_check(record, spec, timeout)
    ]


def _run_check(record: PluginRecord, spec: CheckSpec, timeout: float) -> list[Finding]:
    """Run a check in a thread of its own, which is left behind if it does not end in time."""
    result: list[Finding] = []

    def run() -> None:
        try:
            result.extend(_findings(spec.resolve(record)()))
        except BaseException as error:  # a check that calls sys.exit() must not end the doctor
            result.append(_failed(record, error))

    thread = threading.Thread(target=run, name=record.key, daemon=True)
    thread.start()
    thread.join(timeout)
    return [_late(record, timeout)] if thread.is_alive() else result


async def run_store_checks(
    store: LightningStore, timeout: float = 600.0, **options: Any
) -> list[Finding]:
    """Run the store checks of all installed plugins, in order of their names.

    Args:
        store: The store.
        timeout: Time limit of each check, in seconds. A check that blocks the event loop is not
            interrupted.
        options: What each check gets besides; see :class:`~agl_core.plugins.CheckSpec`.

    Raises:
        MissingDependencyError: No plugin with a store check is installed.
        StoreUnavailableError: The store cannot be reached.
    """
    checks = _checks(reads_store=True)
    if not checks:
        raise missing_package("a check of a store", package_of("check", "store"))
    findings: list[Finding] = []
    for record, spec in checks:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                findings += _findings(await spec.resolve(record)(store, **options))
        except (StoreUnavailableError, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            findings.append(_late(record, timeout) if limit.expired() else _failed(record, error))
    return findings


def _findings(returned: Iterable[object]) -> list[Finding]:
    """Return what a check returned, if it is findings."""
    findings: list[Finding] = []
    for each in returned:
        if not isinstance(each, Finding) or each.severity not in get_args(Severity):
            raise TypeError(f"the check returned {each!r}, which is not a Finding with a severity")
        findings.append(each)
    return findings


def _checks(*, reads_store: bool) -> list[tuple[PluginRecord, CheckSpec]]:
    return [
        (record, spec)
        for record, spec in get_registry().extensions("check")
        if isinstance(spec, CheckSpec) and spec.reads_store == reads_store
    ]


def _failed(record: PluginRecord, error: BaseException) -> Finding:
    return _problem(record, f"failed: {error_text(error)}")


def _late(record: PluginRecord, timeout: float) -> Finding:
    return _problem(record, f"did not finish in {timeout:g} s")


def _problem(record: PluginRecord, what: str) -> Finding:
    return Finding(
        "error",
        "check",
        f"{record.key} of {record.origin} {what}",
        f"upgrade {record.dist}, or AGL_DISABLE_PLUGINS={record.key}",
        (record.key,),
    )
