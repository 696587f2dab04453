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

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, Generic, TypeVar

from agl_algo_apo.config import APOConfig
from agl_algo_apo.proposals import Proposer, read_prompts
from agl_algo_apo.search import BeamSearch
from agl_algo_apo.state import APOState, Candidate
from agl_core.algorithm import (
    Algorithm,
    LLMProxyLike,
    Run,
    add_llm,
    show_progress,
    with_llm_proxy,
)
from agl_core.errors import ConfigError
from agl_core.plugins import configured_by
from agl_core.types import Dataset, NamedResources, PromptTemplate
from agl_prompt_search import (
    EditRules,
    MeteredModel,
    Reporter,
    Snapshots,
    WhatIf,
    check_client,
    fingerprint,
    limits_of,
    open_client,
    prompt_templates,
    require_messages,
    require_tasks,
    require_use,
    write_files,
)

__all__ = ["APO"]

T = TypeVar("T")

_FIXED_OPTIONS: Final = {"beam_width", "branch_factor", "gradient_batch_size", "val_batch_size"}
"""Options that a resumed run must not change: they number its candidates and choose its tasks."""


class APO(Algorithm, Generic[T]):
    """Improves the first prompt template among the initial resources.

    Each round runs every prompt of the beam on a few training tasks, shows these runs to a model
    that criticises the prompt, lets another model edit it, scores old and new prompts on the same
    validation tasks, and keeps the best. A prompt runs once on each validation task.

    A candidate that cannot be used (a failed call, an empty edit, lost placeholders) is rejected
    with the reason in :attr:`history` and never ends the run. When the run ends or is stopped, the
    best prompt becomes the latest resource in the store. It never scored below the seed prompt on
    the validation tasks, unless ``run_initial_validation`` is off.

    A named run (``Trainer(run=…)``, ``agl train --resume``) resumes where it stopped: no rollout is
    repeated, and with a ``seed`` the result is that of an uninterrupted run.

    Options: :class:`APOConfig`.
    """

    @configured_by(APOConfig)
    def __init__(self, config: APOConfig) -> None:
        self.config = config
        self.async_openai_client = config.async_openai_client
        self.prompts = read_prompts(config.prompts_dir)
        self.state: APOState | None = None
        self._engine: Any = "f-string"

    async def check(self) -> None:
        await check_client(self.async_openai_client, self.config.gradient_model)

    def has_more_to_do(self, run: Run) -> bool:
        state = APOState.model_validate(run.state) if run.state else None
        limits = limits_of(self.config, run)
        return state is not None and state.asks_for_more(self.config.beam_rounds, limits)

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[T] | None = None,
        val_dataset: Dataset[T] | None = None,
    ) -> None:
        """Search, and write the best prompt back to the store.

        Raises:
            ValueError: A dataset is missing or empty, the adapter is not a ``TraceToMessages``, or
                the initial resources hold no prompt template or a malformed one.
            ConfigError: A model refuses calls, or the run was started with another prompt, other
                tasks or other sizes.
            RunFailedError: The models gave no usable prompt.
        """
        config, store, run = self.config, self.get_store(), self.get_run()
        budget = config.budget()
        train = require_tasks("APO", "train_dataset", train_dataset)
        val = require_tasks("APO", "val_dataset", val_dataset)
        adapter = require_messages("APO", self.get_adapter())
        initial = self.get_initial_resources() or {}
        key, template = next(iter(prompt_templates("APO", initial).items()))
        EditRules.of(template)
        self._engine = template.engine
        tasks = {"train_dataset": fingerprint(train), "val_dataset": fingerprint(val)}
        self.state = state = self._state_of(run, template, tasks)
        state.stopped, state.limits = "", limits_of(config, run)
        state.use_scale(self.new_scale())
        others = add_llm(initial, llm_proxy)

        def resources_of(version: str) -> NamedResources:
            # The agent may need the other resources, too.
            prompt = state.candidate(version).prompt
            return {**others, key: template.model_copy(update={"template": prompt})}

        snapshots = Snapshots(store, run, resources_of)
        what_if = None
        if config.what_if:
            what_if = WhatIf(
                "APO",
                store=store,
                run=run,
                snapshots=snapshots,
                questions=config.what_if,
                samples=config.what_if_samples,
                timeout=config.rollout_batch_timeout * config.proposals_per_round,
                count=lambda name, rewards: state.count_batch(name, len(rewards)),
            )
        async with open_client(self.async_openai_client) as client:
            with show_progress("APO", config.beam_rounds) as progress:
                model = MeteredModel(
                    client,
                    budget,
                    state.spent,
                    temperature=config.diversity_temperature,
                    timeout=config.call_timeout,
                )
                proposer = Proposer(
                    model,
                    gradient_model=config.gradient_model,
                    edit_model=config.apply_edit_model,
                    prompts=self.prompts,
                    seed=template,
                    send_seed=config.seed is not None,
                    what_if=what_if,
                )
                reporter = Reporter(progress, self.report_step, "apo")
                search = BeamSearch(
                    config,
                    state,
                    run=run,
                    store=store,
                    adapter=adapter,
                    train=train,
                    val=val,
                    snapshots=snapshots,
                    prompt_name=key,
                    proposer=proposer,
                    budget=budget,
                    reporter=reporter,
                )
                if not state.curve:  # otherwise an earlier process did
                    await model.check_key(config.gradient_model)
                try:
                    await search.run()
                    reporter.ended(state)
                finally:  # a stopped run keeps its best prompt, too
                    await snapshots.write_back(state.best)
                    if config.output_dir is not None:
                        write_files(state, Path(config.output_dir))
                require_use("APO", state)

    def _state_of(self, run: Run, template: PromptTemplate, tasks: dict[str, str]) -> APOState:
        """Return the saved state of a run, or a new one.

        Raises:
            ConfigError: The run was started with another prompt, other tasks or other sizes.
        """
        plan = self.config.model_dump(include=_FIXED_OPTIONS)
        if run.state is None:
            seed = self.config.seed
            if seed is None:
                seed = SystemRandom().getrandbits(32)
            first = Candidate(version="v0", prompt=template.template)
            return APOState(seed=seed, history=[first], tasks=tasks, plan=plan)
        state = APOState.model_validate(run.state)
        if state.candidate("v0").prompt != template.template:
            raise ConfigError(
                f"the run {run.name!r} was started with another prompt; choose another name",
                path="initial_resources",
            )
        for name, known in state.tasks.items():
            if known != tasks[name]:  # rewards are kept by the number of the task
                raise ConfigError(
                    f"the run {run.name!r} was started with other tasks; choose another name",
                    path=name,
                )
        self._check_plan(run, state, plan)
        state.plan = plan
        state.forget_unanswered()
        return state

    def _check_plan(self, run: Run, state: APOState, plan: dict[str, int]) -> None:
        changed = [name for name, value in state.plan.items() if plan.get(name) != value]
        # States of older versions have no plan, but candidates whose numbers tell their rounds.
        per_round = self.config.proposals_per_round
        if any(one.round != (one.number - 1) // per_round + 1 for one in state.history):
            changed = changed or ["beam_width or branch_factor"]
        if changed:
            raise ConfigError(
                f"the run {run.name!r} was started with other {', '.join(changed)}; resume it with "
                "the same, or choose another name",
                path="algorithm",
            )

    def get_best_prompt(self) -> PromptTemplate:
        """Return the best prompt of the current or last run.

        Raises:
            ValueError: No run has started.
        """
        state = self._state_or_raise()
        return PromptTemplate(template=state.candidate(state.best).prompt, engine=self._engine)

    @property
    def history(self) -> Sequence[Candidate]:
        """All candidates of the current or last run in the order of proposal, with rejected ones.

        Raises:
            ValueError: No run has started.
        """
        return list(self._state_or_raise().history)

    def _state_or_raise(self) -> APOState:
        if self.state is None:
            raise ValueError("APO has not run yet: call Trainer.fit first")
        return self.state
