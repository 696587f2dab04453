"""What is wrong here, and what to do: the checks of ``agl doctor``.

Each check returns :class:`Finding` objects and changes nothing.
"""

from agl_core.doctor._environment import check_environment
from agl_core.doctor._findings import Finding, Severity
from agl_core.doctor._plugins import check_plugins
from agl_core.doctor._store import check_store

__all__ = ["Finding", "Severity", "check_environment", "check_plugins", "check_store"]
