from .create import (
    create_plugin as create_plugin,
    next_commands as next_commands,
)
from .names import (
    PluginName as PluginName,
)
