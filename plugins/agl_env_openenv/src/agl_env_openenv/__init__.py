"""Environment servers of OpenEnv.

::

    agent = "openenv:http://127.0.0.1:8000"    # in a train file
    Trainer(algorithm="grpo", …).fit("openenv:http://127.0.0.1:8000")
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
