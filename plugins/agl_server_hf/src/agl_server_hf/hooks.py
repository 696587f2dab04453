"""Declares the LLM server ``hf``; its implementation is imported when it is built."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_llm_server() -> ComponentSpec:
    return ComponentSpec(
        kind="llm_server",
        name="hf",
        factory="agl_server_hf.server:HFServer",
        config="agl_server_hf.config:HFServerConfig",
        summary="serves a Hugging Face model from PyTorch; for small models and for CPUs",
        api=1,
    )
