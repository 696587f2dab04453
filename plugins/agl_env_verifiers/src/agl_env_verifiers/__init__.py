"""Environments of the verifiers library.

::

    agent = "verifiers:gsm8k-v1"    # in a train file
    Trainer(algorithm="grpo", …).fit("verifiers:gsm8k-v1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_env_verifiers.agent import VerifiersPlayer
    from agl_env_verifiers.dataset import TasksetView
    from agl_env_verifiers.environment import load
    from agl_env_verifiers.harness import ChatHarness

# verifiers finds a harness by the id of its package: the one Harness among these names.
__all__ = ["ChatHarness", "TasksetView", "VerifiersPlayer", "load"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ChatHarness": "agl_env_verifiers.harness",
        "TasksetView": "agl_env_verifiers.dataset",
        "VerifiersPlayer": "agl_env_verifiers.agent",
        "load": "agl_env_verifiers.environment",
    },
)
