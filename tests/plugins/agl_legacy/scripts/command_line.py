"""The command line of a script, environment variables, logging."""

import logging
import os

from agentlightning import (
    LightningEnvVar,
    Trainer,
    lightning_cli,
    resolve_bool_env_var,
    setup_logging,
)
from agentlightning.env_var import resolve_int_env_var, resolve_str_env_var
from agentlightning.execution.shared_memory import SharedMemoryExecutionStrategy


class Settings:
    def __init__(
        self, name: str, batch_size: int = 4, shuffle: bool = True, tag: str | None = None
    ):
        self.got = (name, batch_size, shuffle, tag)


if __name__ == "__main__":
    setup_logging("DEBUG", color=False, submodule_levels={"agentlightning.store": logging.WARNING})
    settings, strategy, trainer = lightning_cli(Settings, SharedMemoryExecutionStrategy, Trainer)
    print(settings.got, strategy.n_runners, trainer.n_runners)
    os.environ["AGL_SERVER_PORT"] = "4800"
    os.environ["AGL_MANAGED_STORE"] = "off"
    print(
        resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, fallback=1),
        resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, fallback=True),
        resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, fallback="both"),
    )
