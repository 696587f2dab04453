"""``ray``: the runners as actors of a Ray cluster, around a store server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_exec_ray.config import RayConfig
    from agl_exec_ray.strategy import RayExecutionStrategy

__all__ = ["RayConfig", "RayExecutionStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "RayConfig": "agl_exec_ray.config",
        "RayExecutionStrategy": "agl_exec_ray.strategy",
    },
)
