"""The command line and the environment that start vLLM with a server's options."""

from __future__ import annotations

from typing import Final

from agl_server_vllm.config import VLLMConfig
from agl_server_vllm.installation import interpreter_environment
from agl_server_vllm.options import words_of

__all__ = ["serve_environment", "serve_options"]

_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for ``--max-lora-rank``."""
_GENERATION_CONFIG: Final = ("--generation-config", "--generation_config")


def serve_options(config: VLLMConfig, port: int, mark: str) -> list[str]:
    """Return vLLM's command-line options.

    Args:
        config: Options of the server.
        port: Port to serve at.
        mark: Further name of the model, which identifies this vLLM.
    """
    words = ["--host", config.host, "--port", str(port)]
    # Answers carry the first name.
    words += ["--served-model-name", config.base_name, mark]
    if config.lora:
        wanted = config.max_lora_rank
        rank = next((rank for rank in _RANKS if rank >= wanted), wanted)
        words += ["--enable-lora", "--max-lora-rank", str(rank)]
        words += ["--max-loras", str(config.max_loras)]
    given = words_of(config.args)
    if not any(word.partition("=")[0] in _GENERATION_CONFIG for word in given):
        # Otherwise the sampling defaults of the model's generation_config.json (top_p, top_k,
        # repetition_penalty) apply to each request, and no span records them.
        words += [_GENERATION_CONFIG[0], "vllm"]
    return [*words, *given]


def serve_environment(config: VLLMConfig, python: str) -> dict[str, str]:
    """Return the environment of vLLM under an interpreter."""
    env = interpreter_environment(python)
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env["VLLM_SERVER_DEV_MODE"] = "1"
    env["PYTHONUNBUFFERED"] = "1"  # otherwise the last lines before a crash miss in the log
    if config.lora:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    env.pop("VLLM_API_KEY", None)  # vLLM would require a key that nobody here knows
    if config.api_key is not None:
        env["VLLM_API_KEY"] = config.api_key  # other users can read the command line
    return {**env, **config.env}
