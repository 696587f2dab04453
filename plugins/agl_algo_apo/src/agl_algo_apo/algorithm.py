"""APO: automatic prompt optimisation by textual gradients and beam search.

::

    trainer = Trainer(
        algorithm=APO(AsyncOpenAI(), seed=1),
        adapter="messages",
        initial_resources={"prompt": PromptTemplate(template="…", engine="f-string")},
    )
    trainer.fit(agent, train_tasks, val_dataset=val_tasks)
    print(trainer.algorithm.get_best_prompt().template)

Method: Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search",
EMNLP 2023 (https://arxiv.org/abs/2305.03495).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Generic, TypeVar

from agl_algo_apo.proposals import Proposer, read_prompts
from agl_algo_apo.search import BeamSearch, Settings
from agl_algo_apo.state import APOState, Candidate
from agl_core.algorithm import (
    Algorithm,
    ChatClient,
    LLMProxyLike,
    Run,
    add_llm,
    show_progress,
    with_llm_proxy,
)
from agl_core.errors import ConfigError
from agl_core.types import Dataset, NamedResources, PromptTemplate
from agl_prompt_search import (
    Budget,
    MeteredModel,
    Price,
    Reporter,
    Snapshots,
    open_client,
    placeholders,
    prompt_templates,
    require_messages,
    require_tasks,
    write_files,
)

__all__ = ["APO"]

T = TypeVar("T")


class APO(Algorithm, Generic[T]):
    """Improves the first prompt template among the initial resources.

    Each round lets every prompt of the beam work on a few training tasks, shows the runs to a model
    that criticises the prompt, has another model edit it accordingly, scores old and new prompts on
    the same validation tasks, and keeps the best of them. A prompt runs once on each validation
    task: what is known of it is not paid for again.

    A candidate that cannot be used (a call that failed, an empty edit, lost placeholders) is
    rejected with the reason in :attr:`history` and never ends the run. Afterwards, also if the run
    was stopped, the best prompt is the latest resource in the store. It is never one that scored
    below the seed prompt on the validation tasks, unless ``run_initial_validation`` is off.

    In a run with a name (``Trainer(run=…)``, ``agl train --resume``) it goes on where it was: no
    rollout is made twice, and with a ``seed`` it ends as if it had not been stopped.

    Args:
        async_openai_client: Any OpenAI-compatible async client. None makes an
            ``openai.AsyncOpenAI`` from the environment when the run begins.
        gradient_model: The model that criticises.
        apply_edit_model: The model that edits.
        diversity_temperature: Temperature of both.
        gradient_batch_size: Training tasks that are run for a critique.
        val_batch_size: Validation tasks that all candidates of a round are scored on.
        beam_width: Prompts that survive a round, and prompts that a round edits; a shorter beam is
            cycled through.
        branch_factor: Edits of each of them.
        beam_rounds: Rounds.
        rollout_batch_timeout: Seconds that one batch of rollouts may take; what is not done by then
            is cancelled. Batches that run at the same time get as much more.
        run_initial_validation: Whether the seed prompt is measured on all validation tasks first.
        seed: Makes a run repeatable, as far as agent and models are. With it, requests to the
            models carry a seed, too.
        prompts_dir: A folder with prompt files of your own, see
            :mod:`agl_prompt_search.prompt_files`.
        max_rollouts: Most rollouts; a round that may not fit is not begun.
        max_calls: Most calls of the two models; the search stops when they are made.
        max_tokens: Tokens of the two models, in and out, after which it stops.
        max_cost: Money spent on the two models after which it stops; needs ``prices``.
        prices: What the models cost, by name.
        call_timeout: Seconds that a critique or an edit may take.
        output_dir: A folder for ``history.csv``, ``curve.csv`` and ``curve.png``; None writes none.

    Raises:
        ConfigError: A cost limit without prices, or a prompt folder that cannot be used.
    """

    def __init__(
        self,
        async_openai_client: ChatClient | None = None,
        *,
        gradient_model: str = "gpt-5-mini",
        apply_edit_model: str = "gpt-4.1-mini",
        diversity_temperature: float = 1.0,
        gradient_batch_size: int = 4,
        val_batch_size: int = 16,
        beam_width: int = 4,
        branch_factor: int = 4,
        beam_rounds: int = 3,
        rollout_batch_timeout: float = 3600.0,
        run_initial_validation: bool = True,
        seed: int | None = None,
        prompts_dir: str | Path | None = None,
        max_rollouts: int | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        prices: Mapping[str, Price | Mapping[str, float]] | None = None,
        call_timeout: float = 300.0,
        output_dir: str | Path | None = None,
    ) -> None:
        self.async_openai_client = async_openai_client
        self.gradient_model = gradient_model
        self.apply_edit_model = apply_edit_model
        self.diversity_temperature = diversity_temperature
        self.settings = Settings(
            gradient_batch_size=gradient_batch_size,
            val_batch_size=val_batch_size,
            beam_width=beam_width,
            branch_factor=branch_factor,
            beam_rounds=beam_rounds,
            rollout_batch_timeout=rollout_batch_timeout,
            run_initial_validation=run_initial_validation,
        )
        self.seed = seed
        self.prompts = read_prompts(prompts_dir)
        self.budget = Budget.of(
            gradient_model,
            apply_edit_model,
            rollouts=max_rollouts,
            calls=max_calls,
            tokens=max_tokens,
            cost=max_cost,
            prices=prices,
        )
        self.call_timeout = call_timeout
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.state: APOState | None = None
        self._engine: Any = "f-string"

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[T] | None = None,
        val_dataset: Dataset[T] | None = None,
    ) -> None:
        """Search, and write the best prompt back to the store.

        Raises:
            ValueError: A dataset is missing or empty, the adapter is no ``TraceToMessages``, or the
                initial resources hold no prompt template or a malformed one.
        """
        store, run = self.get_store(), self.get_run()
        train = require_tasks("APO", "train_dataset", train_dataset)
        val = require_tasks("APO", "val_dataset", val_dataset)
        adapter = require_messages("APO", self.get_adapter())
        initial = self.get_initial_resources() or {}
        key, template = next(iter(prompt_templates("APO", initial).items()))
        placeholders(template)
        self._engine = template.engine
        self.state = state = self._state_of(run, template)
        others = add_llm(initial, llm_proxy)

        def resources_of(version: str) -> NamedResources:
            # The others come along: the agent may need them, too.
            prompt = state.candidate(version).prompt
            return {**others, key: template.model_copy(update={"template": prompt})}

        snapshots = Snapshots(store, run, resources_of)
        async with open_client(self.async_openai_client) as client:
            with show_progress("APO", self.settings.beam_rounds) as progress:
                model = MeteredModel(
                    client,
                    self.budget,
                    state.spent,
                    temperature=self.diversity_temperature,
                    timeout=self.call_timeout,
                )
                proposer = Proposer(
                    model,
                    gradient_model=self.gradient_model,
                    edit_model=self.apply_edit_model,
                    prompts=self.prompts,
                    seed=template,
                    send_seed=self.seed is not None,
                )
                search = BeamSearch(
                    self.settings,
                    state,
                    run=run,
                    store=store,
                    adapter=adapter,
                    train=train,
                    val=val,
                    snapshots=snapshots,
                    proposer=proposer,
                    budget=self.budget,
                    reporter=Reporter(progress, self.report_step, "apo"),
                )
                try:
                    await search.run()
                finally:  # also when it was stopped: what was found is kept
                    await snapshots.write_back(state.best)
                    if self.output_dir is not None:
                        write_files(state, self.output_dir)

    def _state_of(self, run: Run, template: PromptTemplate) -> APOState:
        """Return the state that a run was saved with, or a new one.

        Raises:
            ConfigError: The run was begun with another prompt.
        """
        if run.state is None:
            seed = SystemRandom().getrandbits(32) if self.seed is None else self.seed
            return APOState(seed=seed, history=[Candidate(version="v0", prompt=template.template)])
        state = APOState.model_validate(run.state)
        if state.candidate("v0").prompt != template.template:
            raise ConfigError(
                f"the run {run.name!r} was begun with another prompt; give it another name",
                path="initial_resources",
            )
        return state

    def get_best_prompt(self) -> PromptTemplate:
        """Return the best prompt of the last run, or of this one so far.

        Raises:
            ValueError: There was no run.
        """
        state = self._ran()
        return PromptTemplate(template=state.candidate(state.best).prompt, engine=self._engine)

    @property
    def history(self) -> Sequence[Candidate]:
        """Every candidate of the last run, rejected ones too, in the order of their proposal.

        Raises:
            ValueError: There was no run.
        """
        return list(self._ran().history)

    def _ran(self) -> APOState:
        if self.state is None:
            raise ValueError("APO has not run yet: call Trainer.fit first")
        return self.state
