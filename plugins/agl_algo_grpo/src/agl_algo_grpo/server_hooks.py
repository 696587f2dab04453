"""The door to the Hugging Face server."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_llm_server() -> ComponentSpec:
    return ComponentSpec(
        kind="llm_server",
        name="hf",
        factory="agl_algo_grpo.hf.server:HFServer",
        config="agl_algo_grpo.config:HFServerConfig",
        summary="serves a Hugging Face model from PyTorch; for small models and for CPUs",
    )
