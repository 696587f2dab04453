"""Writing a new plugin package: what ``agl plugins new`` does.

Each folder of ``templates`` holds the files of one kind, ``common`` those of all; a kind's file
takes the place of a common one of the same path. They are the files of a working plugin, in which
``$name`` and the like stand for what differs (:class:`PluginName`).
"""

from agl_testing.scaffold.create import create_plugin
from agl_testing.scaffold.names import PluginName

__all__ = ["PluginName", "create_plugin"]
