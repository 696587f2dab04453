"""Environment servers of OpenEnv.

::

    agent = "openenv:http://127.0.0.1:8000"    # in a train file
    Trainer(algorithm="grpo", …).fit("openenv:http://127.0.0.1:8000")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_env_openenv.agent import Player, PromptedPlayer
    from agl_env_openenv.environment import load
    from agl_env_openenv.options import OpenEnvOptions

__all__ = ["OpenEnvOptions", "Player", "PromptedPlayer", "load"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "OpenEnvOptions": "agl_env_openenv.options",
        "Player": "agl_env_openenv.agent",
        "PromptedPlayer": "agl_env_openenv.agent",
        "load": "agl_env_openenv.environment",
    },
)
