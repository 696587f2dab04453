"""A small OpenAI-compatible server of Hugging Face models, in a process of its own."""

from agl_algo_grpo.hf.server import HFServer

__all__ = ["HFServer"]
