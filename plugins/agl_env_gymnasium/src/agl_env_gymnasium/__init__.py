"""Environments of Gymnasium in text form, for agents that are language models.

::

    agent = "gymnasium:FrozenLake-v1"    # in a train file
    Trainer(algorithm="grpo", …).fit("gymnasium:FrozenLake-v1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_env_gymnasium.agent import Player, PromptedPlayer
    from agl_env_gymnasium.environment import load
    from agl_env_gymnasium.options import GymnasiumOptions

__all__ = ["GymnasiumOptions", "Player", "PromptedPlayer", "load"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "GymnasiumOptions": "agl_env_gymnasium.options",
        "Player": "agl_env_gymnasium.agent",
        "PromptedPlayer": "agl_env_gymnasium.agent",
        "load": "agl_env_gymnasium.environment",
    },
)
