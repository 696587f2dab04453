"""Train files: runs described in TOML, YAML or JSON, for ``agl train`` and ``agl eval``.

:class:`TrainPlan` and :func:`read_train_file` are for programs. The other names are for commands
that read train files. Everything is imported on first use, since the commands' hooks are light.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
