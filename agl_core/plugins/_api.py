"""Versions of the plugin API; ``docs/plugins/api.md`` has the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agl_core.errors import PluginIncompatibleError
from agl_core.plugins._imports import mend, unusable
from agl_core.plugins._records import CORE_DISTRIBUTION

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord

PLUGIN_API_VERSION: Final = 1
"""Version of the plugin API that this core has."""
OLDEST_PLUGIN_API_VERSION: Final = 1
"""Version of the oldest plugins that this core can use."""

_UNSTATED: Final = 1
"""Version of a plugin that states none: only the first version allowed that."""


class PluginApiWarning(FutureWarning):
    """A plugin uses a part of the plugin API that a later version will not have."""


def check_api(record: PluginRecord, api: object) -> None:
    """Check that this core can use a plugin.

    Args:
        record: The plugin.
        api: What its spec says.

    Raises:
        PluginBrokenError: ``api`` is not a version.
        PluginIncompatibleError: The plugin is written for a newer API, or for one that is too old.
    """
    if api is None:
        api = _UNSTATED
    if type(api) is not int or api < 1:
        raise unusable(record, f"its spec has api={api!r}, which is not a version; {mend(record)}")
    what = f"{record.key} of {record.origin} is written for plugin API {api}, this core has"
    if api > PLUGIN_API_VERSION:
        raise PluginIncompatibleError(f"{what} {PLUGIN_API_VERSION}: upgrade {CORE_DISTRIBUTION}")
    if api < OLDEST_PLUGIN_API_VERSION:
        raise PluginIncompatibleError(
            f"{what} {OLDEST_PLUGIN_API_VERSION} to {PLUGIN_API_VERSION}: upgrade {record.dist}"
        )


def api_remark(api: int | None) -> str:
    """Return what a plugin's author should do about its version; empty if it is the newest."""
    if api is None:
        return (
            "its spec does not say which plugin API it is written for, which counts as "
            f"{_UNSTATED}: add api={PLUGIN_API_VERSION}"
        )
    if api < PLUGIN_API_VERSION:
        return (
            f"it is written for plugin API {api}, this core has {PLUGIN_API_VERSION} and still "
            "serves the older one"
        )
    return ""
