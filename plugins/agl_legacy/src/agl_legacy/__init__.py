"""Runs code of agent-lightning 0.3 and 0.1 on agl, unchanged.

::

    python -m agl_legacy train.py --epochs 3    # a script that says `import agentlightning`

:func:`install` does the same for a program that starts by itself.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
