"""Findings and helpers for checks of ``agl doctor``; the command is a plugin.

A plugin provides a check by the hook ``agl_check``. It returns :class:`Finding` objects and repairs
nothing; :func:`find_bad_versions` is the helper for versions that do not work.
"""

from agl_core.doctor._findings import Finding, Severity, examples
from agl_core.doctor._versions import find_bad_versions, installed_version

__all__ = ["Finding", "Severity", "examples", "find_bad_versions", "installed_version"]
