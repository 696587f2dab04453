from .agent import (
    Player as Player,
    PromptedPlayer as PromptedPlayer,
)
from .environment import load as load
from .options import OpenEnvOptions as OpenEnvOptions
