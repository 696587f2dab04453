"""Proposing candidates: a critique of a prompt's runs is the gradient, an edit is the step.

Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search", EMNLP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from agl_algo_apo.budget import Budget
from agl_algo_apo.experiments import Experiment
from agl_algo_apo.state import Candidate, Spending
from agl_algo_apo.templates import PromptFiles, Purpose, find_mistake, placeholders, unwrap
from agl_core.algorithm.chat import ChatClient, ask_model
from agl_core.types import PromptTemplate

__all__ = ["Proposer"]


class Proposer:
    """Asks one model for critiques and another for edits.

    Args:
        client: Whom to ask.
        gradient_model: Model for critiques.
        edit_model: Model for edits.
        temperature: Of both.
        timeout: Seconds for one call.
        prompts: The questions.
        seed: The template that the search started from; an edit keeps its placeholders.
        budget: Limits; a call that they forbid is not made.
        spent: What is used up; calls are added.
        send_seed: Whether requests carry a seed, for endpoints that repeat themselves then.

    Attributes:
        failures: Calls that brought no text, since this proposer was made.
        answers: Calls that did.
    """

    def __init__(
        self,
        client: ChatClient,
        *,
        gradient_model: str,
        edit_model: str,
        temperature: float,
        timeout: float,
        prompts: PromptFiles,
        seed: PromptTemplate,
        budget: Budget,
        spent: Spending,
        send_seed: bool,
    ) -> None:
        self._client = client
        self._models: dict[Purpose, str] = {"gradient": gradient_model, "edit": edit_model}
        self._temperature = temperature
        self._timeout = timeout
        self._prompts = prompts
        self._seed = seed
        self._wanted = placeholders(seed)
        self._budget = budget
        self._spent = spent
        self._send_seed = send_seed
        self.failures = 0
        self.answers = 0

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
        if problem:
            candidate.rejected = f"no edit: {problem}"
        elif not candidate.prompt:
            candidate.rejected = "no edit: the answer is empty"
        else:
            edited = self._seed.model_copy(update={"template": candidate.prompt})
            candidate.rejected = find_mistake(edited, self._wanted)

    async def _ask(self, purpose: Purpose, dice: Random, **values: object) -> tuple[str, str]:
        """Return the answer to a question, and why there is none."""
        variant = dice.randrange(len(self._prompts.variants(purpose)))
        options = {"seed": dice.getrandbits(31)} if self._send_seed else {}
        if limit := self._budget.exceeded_by(self._spent, calls=1):
            return "", limit
        self._spent.calls += 1
        model = self._models[purpose]
        reply = await ask_model(
            self._client,
            model,
            self._prompts.render(purpose, variant, **values),
            timeout=self._timeout,
            temperature=self._temperature,
            **options,
        )
        self._budget.charge(self._spent, model, reply)
        if reply.problem:
            self.failures += 1
        else:
            self.answers += 1
        return reply.text, reply.problem
