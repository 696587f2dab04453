"""``agl doctor`` and ``agl plugins doctor``: what keeps a run from working, and what to do.

The functions run the checks in a program. Checks repair nothing; plugins add checks by the hook
``agl_check``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_doctor.checks import check_plugins, run_plugin_checks, run_store_checks
    from agl_doctor.environment import check_environment

__all__ = [
    "check_environment",
    "check_plugins",
    "run_plugin_checks",
    "run_store_checks",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("check_plugins", "run_plugin_checks", "run_store_checks"), "agl_doctor.checks"
        ),
        "check_environment": "agl_doctor.environment",
    },
)
