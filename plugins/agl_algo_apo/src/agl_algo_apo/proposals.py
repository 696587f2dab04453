"""Proposals of candidates: the critique of a prompt's runs is the gradient, an edit is the step.

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
    """Return the prompt files: ``gradient*.jinja`` for critiques, ``edit*.jinja`` for edits.

    Args:
        folder: Folder whose files replace the packaged files of the same purpose.

    Raises:
        ConfigError: The folder cannot be used.
    """
    sample = {"critique": "- It does not say how."}
    return PromptFiles("agl_algo_apo", {"gradient": {}, "edit": sample}, folder)


class Proposer:
    """Calls one model for critiques and another for edits.

    Args:
        model: Client for both models.
        gradient_model: Name of the model for critiques.
        edit_model: Name of the model for edits.
        prompts: Prompt files.
        seed: Template that the search started from; edits must keep its placeholders.
        send_seed: Whether requests carry a seed, for endpoints with repeatable sampling.
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
        self, candidate: Candidate, parent: str, experiments: Sequence[Experiment], rng: Random
    ) -> None:
        """Set a candidate's critique and prompt, or the reason of its rejection.

        Args:
            candidate: The candidate; changed in place.
            parent: Template to edit.
            experiments: Runs of the parent.
            rng: Chooses the prompt files and the seeds of the requests.
        """
        shown = {"prompt_template": parent, "experiments": experiments}
        critique, problem = await self._ask("gradient", rng, **shown)
        candidate.critique = critique
        if problem:
            candidate.rejected = f"no critique: {problem}"
            return
        edit, problem = await self._ask("edit", rng, **shown, critique=critique)
        candidate.prompt = unwrap(edit)
        edited = self._seed.model_copy(update={"template": candidate.prompt})
        if problem:
            candidate.rejected = f"no edit: {problem}"
        else:
            candidate.rejected = find_mistake(edited, self._wanted)

    async def _ask(self, purpose: Purpose, rng: Random, **values: object) -> tuple[str, str]:
        """Return the model's answer and the problem; one of them is empty."""
        variant = rng.randrange(len(self._prompts.variants(purpose)))
        seed = rng.getrandbits(31) if self._send_seed else None
        if limit := self.model.limit():
            return "", limit
        messages = self._prompts.render(purpose, variant, **values)
        reply = await self.model.ask(self._names[purpose], messages, seed)
        return reply.text, reply.problem
