"""Shared parts of algorithms that search for better prompts by asking a model.

A search keeps a history of candidates (:mod:`.state`), calls models under a budget (:mod:`.chat`,
:mod:`.model_calls`, :mod:`.budget`), shows them the rollouts (:mod:`.experiments`), reads the
prompt in a reply (:mod:`.replies`), rejects one that lost a placeholder (:mod:`.templates`), lets
the model try changes on recorded rollouts
(:mod:`.what_if`), and reports its progress (:mod:`.report`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_prompt_search.budget import Budget, Price, Spending
    from agl_prompt_search.chat import ChatClient, ChatReply, ask_model
    from agl_prompt_search.experiments import ConversationCheck, Experiment, describe
    from agl_prompt_search.model_calls import MeteredModel
    from agl_prompt_search.prompt_files import PromptFiles
    from agl_prompt_search.replies import without_thoughts
    from agl_prompt_search.report import Reporter, write_files
    from agl_prompt_search.search import (
        Snapshots,
        check_client,
        fingerprint,
        open_client,
        prompt_templates,
        require_messages,
        require_tasks,
        require_use,
    )
    from agl_prompt_search.state import Candidate, CurvePoint, SearchState
    from agl_prompt_search.templates import EditRules, find_mistake, placeholders
    from agl_prompt_search.what_if import Subject, WhatIf

__all__ = [
    "Budget",
    "Candidate",
    "ChatClient",
    "ChatReply",
    "ConversationCheck",
    "CurvePoint",
    "EditRules",
    "Experiment",
    "MeteredModel",
    "Price",
    "PromptFiles",
    "Reporter",
    "SearchState",
    "Snapshots",
    "Spending",
    "Subject",
    "WhatIf",
    "ask_model",
    "check_client",
    "describe",
    "find_mistake",
    "fingerprint",
    "open_client",
    "placeholders",
    "prompt_templates",
    "require_messages",
    "require_tasks",
    "require_use",
    "without_thoughts",
    "write_files",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Budget": "agl_prompt_search.budget",
        "Candidate": "agl_prompt_search.state",
        "ChatClient": "agl_prompt_search.chat",
        "ChatReply": "agl_prompt_search.chat",
        "CurvePoint": "agl_prompt_search.state",
        "ConversationCheck": "agl_prompt_search.experiments",
        "EditRules": "agl_prompt_search.templates",
        "Experiment": "agl_prompt_search.experiments",
        "MeteredModel": "agl_prompt_search.model_calls",
        "Price": "agl_prompt_search.budget",
        "PromptFiles": "agl_prompt_search.prompt_files",
        "Reporter": "agl_prompt_search.report",
        "SearchState": "agl_prompt_search.state",
        "Snapshots": "agl_prompt_search.search",
        "Spending": "agl_prompt_search.budget",
        "Subject": "agl_prompt_search.what_if",
        "WhatIf": "agl_prompt_search.what_if",
        "ask_model": "agl_prompt_search.chat",
        "check_client": "agl_prompt_search.search",
        "describe": "agl_prompt_search.experiments",
        "fingerprint": "agl_prompt_search.search",
        "find_mistake": "agl_prompt_search.templates",
        "open_client": "agl_prompt_search.search",
        "placeholders": "agl_prompt_search.templates",
        "prompt_templates": "agl_prompt_search.search",
        "require_messages": "agl_prompt_search.search",
        "require_tasks": "agl_prompt_search.search",
        "require_use": "agl_prompt_search.search",
        "without_thoughts": "agl_prompt_search.replies",
        "write_files": "agl_prompt_search.report",
    },
)
