"""A scripted model server for tests."""

from agl_testing.models.endpoint import ModelEndpoint, real_or_scripted
from agl_testing.models.script import Reply, Token, ToolCall, prompt_tokens, tokenize
from agl_testing.models.server import Script, ScriptedModels, SeenRequest
from agl_testing.models.templates import TEMPLATES, ChatTemplate, TemplateError

__all__ = [
    "TEMPLATES",
    "ChatTemplate",
    "ModelEndpoint",
    "Reply",
    "Script",
    "ScriptedModels",
    "SeenRequest",
    "TemplateError",
    "Token",
    "ToolCall",
    "prompt_tokens",
    "real_or_scripted",
    "tokenize",
]
