"""GEPA: evolution of an agent's prompts by reflection, with a Pareto front.

::

    trainer = Trainer(
        algorithm=GEPA(AsyncOpenAI(), seed=1, max_rollouts=400),
        adapter="messages",
        initial_resources={"planner": PromptTemplate(…), "writer": PromptTemplate(…)},
    )
    trainer.fit(agent, train_tasks, val_dataset=val_tasks)
    print(trainer.algorithm.get_best_prompts()["writer"].template)

Method: Agrawal et al., "GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning",
2025 (https://arxiv.org/abs/2507.19457). The search itself is the ``gepa`` library's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final, Generic, TypeVar

from agl_algo_gepa.bridge import Bridge
from agl_algo_gepa.config import GEPAConfig
from agl_algo_gepa.engine import optimise
from agl_algo_gepa.evolution import Evolution
from agl_algo_gepa.measurements import Measurements
from agl_algo_gepa.recorder import Recorder
from agl_algo_gepa.reflection import Reflection
from agl_algo_gepa.state import Candidate, GEPAState
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
    MeteredModel,
    PromptFiles,
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

__all__ = ["GEPA"]

T = TypeVar("T")

_FIXED_OPTIONS: Final = {
    "proposals_per_iteration",
    "reflection_minibatch_size",
    "candidate_selection_strategy",
    "module_selector",
    "acceptance_criterion",
    "perfect_score",
    "use_merge",
    "max_merge_invocations",
}
"""Options that a resumed run must not change, because the engine's decisions depend on them."""


class GEPA(Algorithm, Generic[T]):
    """Evolves the prompt templates among the initial resources, all of one agent's together.

    An iteration chooses a parent on the Pareto front of the validation tasks, runs it on a few
    training tasks, shows these runs to a model, and lets it rewrite one of the prompts. If the
    result does better on the same tasks, it is measured on all validation tasks and may become a
    parent. A candidate runs once on each task.

    A candidate that cannot be used (a failed call, an empty edit, lost placeholders) is rejected
    with the reason in :attr:`history` and never ends the run. When the run ends or is stopped, the
    best candidate's prompts become the latest resources in the store. That candidate never scored
    below the seed on the validation tasks.

    A named run (``Trainer(run=…)``, ``agl train --resume``) resumes where it stopped: no rollout is
    repeated, and with a ``seed`` the result is that of an uninterrupted run.

    Options: :class:`GEPAConfig`.
    """

    @configured_by(GEPAConfig)
    def __init__(self, config: GEPAConfig) -> None:
        self.config = config
        self.async_openai_client = config.async_openai_client
        sample = {"name": "prompt", "others": {"other": "Be brief."}}
        self.prompts = PromptFiles("agl_algo_gepa", {"reflect": sample}, config.prompts_dir)
        self.state: GEPAState | None = None
        self._templates: Mapping[str, PromptTemplate] = {}

    async def check(self) -> None:
        await check_client(self.async_openai_client, self.config.reflection_model)

    def has_more_to_do(self, run: Run) -> bool:
        state = GEPAState.model_validate(run.state) if run.state else None
        limits = limits_of(self.config, run)
        return state is not None and state.asks_for_more(self.config.max_iterations, limits)

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[T] | None = None,
        val_dataset: Dataset[T] | None = None,
    ) -> None:
        """Search, and write the best prompts back to the store.

        Raises:
            ValueError: A dataset is missing or empty, the adapter is not a ``TraceToMessages``, or
                the initial resources hold no prompt template or a malformed one.
            ConfigError: A component is not a prompt template, or the run was started with other
                prompts, tasks or options.
        """
        config, store, run = self.config, self.get_store(), self.get_run()
        budget = config.budget()
        train = require_tasks("GEPA", "train_dataset", train_dataset)
        val = require_tasks("GEPA", "val_dataset", val_dataset)
        adapter = require_messages("GEPA", self.get_adapter())
        initial = self.get_initial_resources() or {}
        self._templates = templates = self._choose(initial)
        seed_prompts = {name: template.template for name, template in templates.items()}
        self.state = state = self._state_of(run, seed_prompts, train, val)
        state.limits = limits_of(config, run)
        state.use_scale(self.new_scale())
        others = add_llm(initial, llm_proxy)

        def resources_of(version: str) -> NamedResources:
            # The agent may need the other resources, too.
            return {**others, **self._templates_of(state.candidate(version))}

        snapshots = Snapshots(store, run, resources_of)
        proposals = config.proposals_per_iteration
        edits = proposals * self._components_per_edit()

        def count(name: str, rewards: Sequence[float]) -> None:
            state.journal.rewards[name] = list(rewards)
            state.count_batch(name, len(rewards))

        what_if = None
        if config.what_if:
            what_if = WhatIf(
                "GEPA",
                store=store,
                run=run,
                snapshots=snapshots,
                questions=config.what_if,
                samples=config.what_if_samples,
                timeout=config.rollout_batch_timeout * edits,
                count=count,
            )
        minibatch = min(config.reflection_minibatch_size, len(train))
        async with open_client(self.async_openai_client) as client:
            with show_progress("GEPA", config.max_iterations) as progress:
                model = MeteredModel(
                    client,
                    budget,
                    state.spent,
                    temperature=config.temperature,
                    timeout=config.call_timeout,
                )

                def pay() -> None:
                    for reply in state.journal.lost:
                        model.pay(config.reflection_model, reply)

                recorder = Recorder(state, run, Reporter(progress, self.report_step, "gepa"), pay)
                measurements = Measurements(
                    recorder,
                    store=store,
                    adapter=adapter,
                    train=train,
                    val=val,
                    snapshots=snapshots,
                    timeout=config.rollout_batch_timeout,
                )
                reflection = Reflection(
                    recorder,
                    measurements,
                    templates=templates,
                    model=model,
                    name=config.reflection_model,
                    what_if=what_if,
                    files=self.prompts,
                    send_seed=config.seed is not None,
                )
                evolution = Evolution(
                    recorder,
                    measurements,
                    reflection,
                    n_val=len(val),
                    budget=budget,
                    iteration_rollouts=proposals * (2 * minibatch + len(val))
                    + edits * config.what_if * 2 * config.what_if_samples,
                    iteration_calls=edits * (1 + config.what_if),
                    max_rounds=config.max_iterations,
                    perfect_score=config.perfect_score,
                )
                bridge = Bridge()
                engine = partial(
                    optimise,
                    config,
                    evolution,
                    bridge,
                    seed_prompts=seed_prompts,
                    n_train=len(train),
                    n_val=len(val),
                    seed=state.seed,
                )
                if not state.journal.rewards:  # otherwise an earlier process did
                    await model.check_key(config.reflection_model)
                try:
                    if await evolution.may_begin():
                        await bridge.run(engine)
                        recorder.reporter.ended(state)
                finally:  # a stopped run keeps its best prompts, too
                    await snapshots.write_back(state.best)
                    if config.output_dir is not None:
                        write_files(state, Path(config.output_dir))
                require_use("GEPA", state)

    def _choose(self, initial: NamedResources) -> Mapping[str, PromptTemplate]:
        """Return the prompts that evolve."""
        found = prompt_templates("GEPA", initial)
        names = found if self.config.components is None else self.config.components
        for name in names:
            if name not in found:
                raise ConfigError(
                    f"{name!r} is not one of the prompt templates {', '.join(found)}",
                    path="algorithm.components",
                )
        return {name: found[name] for name in names}

    def _components_per_edit(self) -> int:
        return len(self._templates) if self.config.module_selector == "all" else 1

    def _state_of(
        self, run: Run, seed_prompts: dict[str, str], train: Dataset[T], val: Dataset[T]
    ) -> GEPAState:
        """Return a new state, with the journal of the saved run if there is one.

        Raises:
            ConfigError: The run was started with other prompts, tasks or options.
        """
        options = self.config.model_dump(include=_FIXED_OPTIONS)
        declared = self.new_scale().declared
        plan = {
            **options,
            "training tasks": fingerprint(train),
            "validation tasks": fingerprint(val),
            "reward_range": None if declared is None else list(declared),
        }
        seed = SystemRandom().getrandbits(32) if self.config.seed is None else self.config.seed
        first = Candidate(version="v0", prompts=seed_prompts)
        if run.state is None:
            return GEPAState(seed=seed, history=[first], plan=plan)
        saved = GEPAState.model_validate(run.state)
        changed = [name for name, value in saved.plan.items() if plan.get(name) != value]
        if saved.history[0].prompts != seed_prompts:
            changed.append("prompts")
        if changed:
            raise ConfigError(
                f"the run {run.name!r} was started with other {', '.join(changed)}; "
                "choose another name",
                path="algorithm",
            )
        saved.journal.forget_failures()
        return GEPAState(
            seed=saved.seed,
            history=[first],
            plan=plan,
            journal=saved.journal,
            crashed=saved.crashed,
            unrated=saved.unrated,
        )

    def _templates_of(self, candidate: Candidate) -> dict[str, PromptTemplate]:
        return {
            name: template.model_copy(update={"template": candidate.prompts[name]})
            for name, template in self._templates.items()
        }

    def get_best_prompts(self) -> dict[str, PromptTemplate]:
        """Return the best prompts of the current or last run, by name.

        Raises:
            ValueError: No run has started.
        """
        state = self._state_or_raise()
        return self._templates_of(state.candidate(state.best))

    @property
    def history(self) -> Sequence[Candidate]:
        """All candidates of the current or last run in the order of proposal, with rejected ones.

        Raises:
            ValueError: No run has started.
        """
        return list(self._state_or_raise().history)

    def _state_or_raise(self) -> GEPAState:
        if self.state is None:
            raise ValueError("GEPA has not run yet: call Trainer.fit first")
        return self.state
