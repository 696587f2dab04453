"""What plugins provide to resources: their types, and the engines of prompt templates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from agl_core.errors import PluginError
from agl_core.plugins._registry import Registry, get_registry

logger = logging.getLogger(__name__)


def load_resource_type(name: str | None) -> None:
    """Register the resource type of this name, if an installed plugin provides it.

    Args:
        name: A ``resource_type``; None registers those of all plugins.
    """
    registry = get_registry()
    names = [record.name for record in registry.usable("resource")] if name is None else [name]
    for each in names:
        _load_once(registry, each)


# Cached, because a snapshot may hold many resources of a type that no plugin provides.
@lru_cache(maxsize=1024)
def _load_once(registry: Registry, name: str) -> None:
    from agl_core.types import register_resource_type

    for record in registry.usable("resource"):
        if record.name == name:
            try:
                register_resource_type(registry.load(record).resolve(record))
            except (PluginError, ValueError) as error:
                logger.error("a resource type is left out: %s", error)


def template_engine(name: str) -> Callable[[str, Mapping[str, Any]], str]:
    """Return the function that fills the prompt templates of an engine.

    Raises:
        PluginError: No usable plugin provides the engine.
    """
    return _engine_once(get_registry(), name)


@lru_cache(maxsize=16)
def _engine_once(registry: Registry, name: str) -> Callable[[str, Mapping[str, Any]], str]:
    record = registry.find("template_engine", name)
    return registry.load(record).resolve(record)
