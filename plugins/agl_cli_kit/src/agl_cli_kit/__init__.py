"""The command ``agl``.

:func:`main` reports each outcome as an exit code and at most one line:

====  ==========================================================================================
code  meaning
====  ==========================================================================================
0     done
1     the command failed while running, or the reader of its output closed the pipe
2     the user's mistake: an unknown command or option, a bad file, a missing or broken plugin
130   Ctrl+C
====  ==========================================================================================

Authors of commands use the helpers of the commands here: :func:`store_options` and
:func:`open_store` for the store that a command reads or writes, :func:`kind_option` for a kind of
plugins, :func:`print_json` and :func:`print_table` for its output, :func:`setup_logging` for its
log, and :func:`error_console` for other text on standard error. They import click or logging, so
they are imported on first use.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
