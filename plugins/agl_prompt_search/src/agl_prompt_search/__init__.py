"""What algorithms share that search for better prompts by asking a model.

A search keeps a history of candidates (:mod:`.state`), asks a model under a budget (:mod:`.asking`,
:mod:`.budget`), shows it what happened in rollouts (:mod:`.experiments`), refuses edits that lost
a placeholder (:mod:`.templates`), and tells how it goes (:mod:`.report`).
"""

from agl_prompt_search.budget import Budget, Price, Spending
from agl_prompt_search.experiments import Experiment, describe
from agl_prompt_search.model_calls import MeteredModel
from agl_prompt_search.prompt_files import PromptFiles
from agl_prompt_search.report import Reporter, write_files
from agl_prompt_search.search import (
    Snapshots,
    open_client,
    prompt_templates,
    require_messages,
    require_tasks,
)
from agl_prompt_search.state import Candidate, CurvePoint, SearchState
from agl_prompt_search.templates import find_mistake, placeholders, unwrap

__all__ = [
    "Budget",
    "Candidate",
    "CurvePoint",
    "Experiment",
    "MeteredModel",
    "Price",
    "PromptFiles",
    "Reporter",
    "SearchState",
    "Snapshots",
    "Spending",
    "describe",
    "find_mistake",
    "open_client",
    "placeholders",
    "prompt_templates",
    "require_messages",
    "require_tasks",
    "unwrap",
    "write_files",
]
