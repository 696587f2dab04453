"""API keys in resources: who may see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from agl_core.types import ResourcesUpdate

__all__ = ["MASK", "has_mask", "masked", "masked_snapshots"]

MASK: Final = "***"
_KEY: Final = "api_key"


def masked(value: Any) -> Any:
    """Return JSON values with a mask in the place of each API key, at any depth."""
    if isinstance(value, list):
        return [masked(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        key: MASK if key == _KEY and item is not None else masked(item)
        for key, item in fields.items()
    }


def has_mask(value: Any) -> bool:
    """Return whether JSON values hold a mask in the place of an API key."""
    if isinstance(value, list):
        return any(map(has_mask, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    return fields.get(_KEY) == MASK or any(map(has_mask, fields.values()))


def masked_snapshots(snapshots: Iterable[ResourcesUpdate]) -> list[ResourcesUpdate]:
    """Return snapshots without their API keys."""
    return [
        ResourcesUpdate.model_validate(masked(snapshot.model_dump(mode="json")))
        for snapshot in snapshots
    ]
