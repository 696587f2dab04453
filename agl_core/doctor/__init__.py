"""The checks of ``agl doctor``.

Each check returns :class:`Finding` objects and repairs nothing. A plugin adds a check by the hook
``agl_check``; :func:`find_bad_versions` is the helper for versions that do not work.
"""

from agl_core.doctor._environment import check_environment, find_bad_versions
from agl_core.doctor._findings import Finding, Severity
from agl_core.doctor._plugins import check_plugins, run_plugin_checks
from agl_core.doctor._store import check_store

__all__ = [
    "Finding",
    "Severity",
    "check_environment",
    "check_plugins",
    "check_store",
    "find_bad_versions",
    "run_plugin_checks",
]
