"""A scripted model server for tests."""

from agl_scripted.endpoint import ModelEndpoint, real_or_scripted
from agl_scripted.script import Reply, Token, ToolCall, prompt_tokens, tokenize
from agl_scripted.server import Script, ScriptedModels, SeenRequest
from agl_scripted.templates import TEMPLATES, ChatTemplate, TemplateError

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
