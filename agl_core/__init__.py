"""agl: train any AI agent.

::

    import agl_core as agl

    @agl.rollout
    def agent(task, llm): ...

    agl.Trainer(algorithm="baseline").fit(agent, tasks)

Each public name is imported on first use, so ``import agl_core`` loads almost no modules. The stub
``__init__.pyi`` says where each comes from.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from agl_core.lazy import lazy_names

__version__ = "0.1.0"

_own, _names, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _own(name)
    value = globals()[name] = _of_package(name)
    return value


def _of_package(name: str) -> Any:
    """Return a name that a package of an installed catalogue provides."""
    from agl_core.plugins import get_registry

    # Python asks modules for names like `__path__`, before anything can be discovered.
    home = None if name.startswith("_") else get_registry().catalogue.home_of(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, distribution = home
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:  # the plugin is installed, but one of its imports is missing
            raise
        from agl_core.plugins import missing_package

        missing = missing_package(name, distribution)
        # `from agl_core import NAME` would replace the message of an AttributeError; hasattr() and
        # getattr() with a default know no other error. The import system asks by this function.
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":  # pyright: ignore[reportPrivateUsage]
            raise missing from error
        raise AttributeError(str(missing), name=name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})
