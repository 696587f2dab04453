"""Environments of the verifiers library.

::

    agent = "verifiers:gsm8k-v1"    # in a train file
    Trainer(algorithm="grpo", …).fit("verifiers:gsm8k-v1")
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
