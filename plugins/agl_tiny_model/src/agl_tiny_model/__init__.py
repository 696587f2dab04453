"""Small language models, built in seconds, for examples and tests.

:mod:`agl_tiny_model.qwen` builds a model like real ones: merged tokens, a template with tools, and
conversations that it knows. :mod:`agl_tiny_model.llama` builds one with a token per byte, which
learns a format in seconds.
"""

from agl_tiny_model.llama import (
    BYTE_CHAT_TEMPLATE,
    build_byte_llama,
    build_byte_tokenizer,
    build_llama,
)
from agl_tiny_model.qwen import (
    CHAT_TEMPLATE,
    CONVERSATIONS,
    VLLM_CPU_ARGS,
    VLLM_CPU_ENV,
    WEATHER_TOOL,
    build_adapter,
    build_model,
    build_tokenizer,
    make_tiny_model,
    teach,
)

__all__ = [
    "BYTE_CHAT_TEMPLATE",
    "CHAT_TEMPLATE",
    "CONVERSATIONS",
    "VLLM_CPU_ARGS",
    "VLLM_CPU_ENV",
    "WEATHER_TOOL",
    "build_adapter",
    "build_byte_llama",
    "build_byte_tokenizer",
    "build_llama",
    "build_model",
    "build_tokenizer",
    "make_tiny_model",
    "teach",
]
