"""Proposals of candidates: the critique of a prompt's runs is the gradient, an edit is the step.

Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search", EMNLP 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from agl_algo_apo.state import Candidate
from agl_core.types import PromptTemplate
from agl_prompt_search import (
    ChatReply,
    EditRules,
    Experiment,
    MeteredModel,
    PromptFiles,
    Subject,
    WhatIf,
    without_thoughts,
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
        what_if: Answers the critic's questions; None: it may ask none.
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
        what_if: WhatIf | None = None,
    ) -> None:
        self.model = model
        self._names: dict[Purpose, str] = {"gradient": gradient_model, "edit": edit_model}
        self._prompts = prompts
        self._rules = EditRules.of(seed)
        self._send_seed = send_seed
        self._what_if = what_if

    async def propose(
        self,
        candidate: Candidate,
        parent: str,
        experiments: Sequence[Experiment],
        subject: Subject,
        rng: Random,
    ) -> None:
        """Set a candidate's critique and prompt, or the reason of its rejection.

        Args:
            candidate: The candidate; changed in place.
            parent: Template to edit.
            experiments: Runs of the parent.
            subject: The prompt and the runs that the critic may ask about.
            rng: Chooses the prompt files and the seeds of the requests.
        """
        shown = {"prompt_template": parent, "experiments": experiments}
        reply = await self._ask("gradient", rng, subject, **shown)
        candidate.critique = without_thoughts(reply.text)
        if not candidate.critique:
            problem = reply.problem or "the answer has thoughts only"
            candidate.rejected = f"no critique: {problem}"
            candidate.unusable = problem != self.model.limit()
            candidate.unanswered = candidate.unusable and bool(reply.problem)
            return
        reply = await self._ask("edit", rng, None, **shown, critique=candidate.critique)
        candidate.prompt, mistake = self._rules.read(reply.text, parent)
        if reply.problem:
            candidate.rejected = f"no edit: {reply.problem}"
        elif reply.cut_off:
            candidate.rejected = "no edit: the answer is cut off at its limit of tokens"
        else:
            candidate.rejected = mistake
        limited = bool(reply.problem) and reply.problem == self.model.limit()
        candidate.unusable = bool(candidate.rejected) and not limited
        candidate.unanswered = candidate.unusable and bool(reply.problem)

    async def _ask(
        self, purpose: Purpose, rng: Random, subject: Subject | None, **values: object
    ) -> ChatReply:
        """Return the model's answer."""
        variant = rng.randrange(len(self._prompts.variants(purpose)))
        seed = rng.getrandbits(31) if self._send_seed else None

        async def call(messages: Sequence[Mapping[str, Any]], number: int = 0) -> ChatReply:
            if limit := self.model.limit():
                return ChatReply(problem=limit)
            return await self.model.ask(self._names[purpose], messages, seed)

        messages = self._prompts.render(purpose, variant, **values)
        if self._what_if is None or subject is None:
            return await call(messages)
        return await self._what_if.converse(messages, subject, call)
