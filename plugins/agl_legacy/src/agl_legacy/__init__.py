"""Runs code of agent-lightning 0.3 and 0.1 on agl, unchanged.

::

    python -m agl_legacy train.py --epochs 3    # a script that says `import agentlightning`

:func:`install` does the same for a program that starts by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_legacy.components import build_component
    from agl_legacy.importing import AlreadyInstalledError, NotHereError, install, uninstall
    from agl_legacy.runner import LegacyAgentRunner
    from agl_legacy.task_client import AgentLightningClient, DevTaskLoader
    from agl_legacy.task_server import AgentLightningServer
    from agl_legacy.trainer import Trainer
    from agl_legacy.types import (
        GenericResponse,
        RolloutLegacy,
        RolloutRawResultLegacy,
        SpanAttributeNames,
        SpanNames,
        Task,
        TaskIfAny,
    )

__all__ = [
    "AgentLightningClient",
    "AgentLightningServer",
    "AlreadyInstalledError",
    "DevTaskLoader",
    "GenericResponse",
    "LegacyAgentRunner",
    "NotHereError",
    "RolloutLegacy",
    "RolloutRawResultLegacy",
    "SpanAttributeNames",
    "SpanNames",
    "Task",
    "TaskIfAny",
    "Trainer",
    "build_component",
    "install",
    "uninstall",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AgentLightningClient": "agl_legacy.task_client",
        "AgentLightningServer": "agl_legacy.task_server",
        "AlreadyInstalledError": "agl_legacy.importing",
        "DevTaskLoader": "agl_legacy.task_client",
        "GenericResponse": "agl_legacy.types",
        "LegacyAgentRunner": "agl_legacy.runner",
        "NotHereError": "agl_legacy.importing",
        "RolloutLegacy": "agl_legacy.types",
        "RolloutRawResultLegacy": "agl_legacy.types",
        "SpanAttributeNames": "agl_legacy.types",
        "SpanNames": "agl_legacy.types",
        "Task": "agl_legacy.types",
        "TaskIfAny": "agl_legacy.types",
        "Trainer": "agl_legacy.trainer",
        "build_component": "agl_legacy.components",
        "install": "agl_legacy.importing",
        "uninstall": "agl_legacy.importing",
    },
)
