"""The checks of ``agl doctor``.

Each check returns :class:`Finding` objects and repairs nothing. A plugin adds a check by the hook
``agl_check``, of the environment or of a store; :func:`find_bad_versions` is the helper for
versions that do not work.
"""

from agl_core.doctor._environment import check_environment, find_bad_versions
from agl_core.doctor._findings import Finding, Severity, examples
from agl_core.doctor._plugins import check_plugins, run_plugin_checks, run_store_checks

__all__ = [
    "Finding",
    "Severity",
    "check_environment",
    "check_plugins",
    "examples",
    "find_bad_versions",
    "run_plugin_checks",
    "run_store_checks",
]
