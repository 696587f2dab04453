"""vLLM as an LLM server of agl."""

from agl_server_vllm.server import VLLMServer

__all__ = ["VLLMServer"]
