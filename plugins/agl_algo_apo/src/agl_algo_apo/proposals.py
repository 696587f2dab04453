"""Proposing candidates: a critique of a prompt's runs is the gradient, an edit is the step.

Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search", EMNLP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

from agl_algo_apo.state import Candidate
from agl_core.types import PromptTemplate
from agl_prompt_search import (
    Experiment,
    MeteredModel,
    PromptFiles,
    find_mistake,
    placeholders,
    unwrap,
)

__all__ = ["Proposer", "read_prompts"]

Purpose = Literal["gradient", "edit"]


def read_prompts(folder: str | Path | None = None) -> PromptFiles:
    """Return the questions: ``gradient*.jinja`` for critiques, ``edit*.jinja`` for edits.

    Args:
        folder: A folder whose files replace the packaged ones of the same purpose.

    Raises:
        ConfigError: The folder cannot be used.
    """
    sample = {"critique": "- It does not say how."}
    return PromptFiles("agl_algo_apo", {"gradient": {}, "edit": sample}, folder)


class Proposer:
    """Asks one model for critiques and another for edits.

    Args:
        model: Whom to ask.
        gradient_model: Model for critiques.
        edit_model: Model for edits.
        prompts: The questions.
        seed: The template that the search started from; an edit keeps its placeholders.
        send_seed: Whether requests carry a seed, for endpoints that repeat themselves then.
    """

    def __init__(
        self,
        model: MeteredModel,
        *,
        gradient_model: str,
        edit_model: str,
        prompts: PromptFiles,
        seed: PromptTemplate,
        send_seed: bool,
    ) -> None:
        self.model = model
        self._names: dict[Purpose, str] = {"gradient": gradient_model, "edit": edit_model}
        self._prompts = prompts
        self._seed = seed
        self._wanted = placeholders(seed)
        self._send_seed = send_seed

    async def propose(
        self, candidate: Candidate, parent: str, experiments: Sequence[Experiment], dice: Random
    ) -> None:
        """Fill in a candidate's critique and prompt, or why it is rejected.

        Args:
            candidate: The candidate.
            parent: The template that it is an edit of.
            experiments: Runs of the parent.
            dice: Decides which questions are asked, and how.
        """
        shown = {"prompt_template": parent, "experiments": experiments}
        critique, problem = await self._ask("gradient", dice, **shown)
        candidate.critique = critique
        if problem:
            candidate.rejected = f"no critique: {problem}"
            return
        edit, problem = await self._ask("edit", dice, **shown, critique=critique)
        candidate.prompt = unwrap(edit)
        edited = self._seed.model_copy(update={"template": candidate.prompt})
        if problem:
            candidate.rejected = f"no edit: {problem}"
        else:
            candidate.rejected = find_mistake(edited, self._wanted)

    async def _ask(self, purpose: Purpose, dice: Random, **values: object) -> tuple[str, str]:
        """Return the answer to a question, and why there is none."""
        variant = dice.randrange(len(self._prompts.variants(purpose)))
        seed = dice.getrandbits(31) if self._send_seed else None
        if limit := self.model.limit():
            return "", limit
        messages = self._prompts.render(purpose, variant, **values)
        reply = await self.model.ask(self._names[purpose], messages, seed)
        return reply.text, reply.problem
