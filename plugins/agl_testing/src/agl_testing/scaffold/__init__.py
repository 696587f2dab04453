"""Create a new plugin package; the code behind ``agl plugins new``.

Each folder of ``templates`` holds the files of one kind, ``common`` those of all; a kind's file
replaces a common one of the same path. They are the files of a working plugin, in which
``$name`` and similar placeholders are filled in (:class:`PluginName`).
"""

from agl_testing.scaffold.create import create_plugin
from agl_testing.scaffold.names import PluginName

__all__ = ["PluginName", "create_plugin"]
