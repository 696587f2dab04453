"""A scripted model server for tests."""

from agl_testing.models.script import Reply, Token, ToolCall, prompt_tokens, tokenize
from agl_testing.models.server import Script, ScriptedModels, SeenRequest

__all__ = [
    "Reply",
    "Script",
    "ScriptedModels",
    "SeenRequest",
    "Token",
    "ToolCall",
    "prompt_tokens",
    "tokenize",
]
