"""Apps of plugins on the store server: a dashboard, a metrics page."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from agl_core.errors import PluginBrokenError
from agl_core.plugins._spec import AppSpec
from agl_core.store.base import LightningStore

__all__ = ["Mounts"]


class Mounts:
    """Finds the mounted app that a path belongs to; the longest prefix wins.

    Args:
        specs: What to mount.
        store: Handed to each app's factory.

    Raises:
        PluginBrokenError: An app cannot be made.
    """

    def __init__(self, specs: Iterable[AppSpec], store: LightningStore) -> None:
        made = [(spec.path.rstrip("/"), spec, _make(spec, store)) for spec in specs]
        self._mounts = sorted(made, key=lambda mount: len(mount[0]), reverse=True)

    def find(self, path: str) -> tuple[AppSpec, Any, str] | None:
        """Return the spec, the app and the prefix that it is mounted under.

        An app on ``/`` gets everything but ``/v1/…``, where an unknown path is an error.
        """
        for prefix, spec, app in self._mounts:
            if prefix == "":
                return None if path.startswith("/v1/") else (spec, app, prefix)
            if path == prefix or path.startswith(prefix + "/"):
                return spec, app, prefix
        return None


def _make(spec: AppSpec, store: LightningStore) -> Any:
    module, _, name = spec.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(store)
    except Exception as error:
        raise PluginBrokenError(f"app {spec.name!r} ({spec.factory}) failed: {error}") from error
