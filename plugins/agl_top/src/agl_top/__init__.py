"""The store in a terminal: ``agl top``, and lists of what a store holds.

``agl rollouts``, ``agl attempts``, ``agl workers`` and ``agl resources`` print one list each, for
people or as JSON, once or whenever something changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_top.snapshot import Sampler, Snapshot

__all__ = ["Sampler", "Snapshot"]

__getattr__, __dir__ = lazy_names(
    __name__, {"Sampler": "agl_top.snapshot", "Snapshot": "agl_top.snapshot"}
)
