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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Generic, TypeVar

from agl_algo_gepa.bridge import Bridge
from agl_algo_gepa.config import Acceptance, ModuleSelector, Selection
from agl_algo_gepa.engine import Settings, optimise
from agl_algo_gepa.evolution import Evolution
from agl_algo_gepa.state import Candidate, GEPAState
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
    PromptFiles,
    Reporter,
    Snapshots,
    open_client,
    prompt_templates,
    require_messages,
    require_tasks,
    write_files,
)

__all__ = ["GEPA"]

T = TypeVar("T")


class GEPA(Algorithm, Generic[T]):
    """Evolves the prompt templates among the initial resources, all of one agent's together.

    An iteration picks a parent on the Pareto front of the validation tasks, runs it on a few
    training tasks, shows a model what happened, and has it rewrite one of the prompts. If the
    result does better on the same tasks, it is measured on all validation tasks and may become a
    parent. A candidate runs once on each task: what is known of it is not paid for again.

    A candidate that cannot be used (a call that failed, an empty edit, lost placeholders) is
    rejected with the reason in :attr:`history` and never ends the run. Afterwards, also if the run
    was stopped, the best candidate's prompts are the latest resources in the store. It is never one
    that scored below the seed on the validation tasks.

    In a run with a name (``Trainer(run=…)``, ``agl train --resume``) it goes on where it was: no
    rollout is made twice, and with a ``seed`` it ends as if it had not been stopped.

    Args:
        async_openai_client: Any OpenAI-compatible async client. None makes an
            ``openai.AsyncOpenAI`` from the environment when the run begins.
        reflection_model: The model that reflects on runs and writes new prompts.
        temperature: Its temperature.
        components: Names of the prompts that evolve; None is all of the initial resources.
        max_iterations: Iterations.
        proposals_per_iteration: New candidates that an iteration makes side by side.
        reflection_minibatch_size: Training tasks that a candidate is compared with its parent on.
        candidate_selection_strategy: Which candidates become parents: those on the Pareto front,
            more often the more tasks they are best at; the best; the best with a chance for any
            other; or those of the front among the best few.
        module_selector: Whether a new candidate changes one prompt, in turn, or all of them.
        acceptance_criterion: What a candidate must show on the minibatch before it is measured on
            the validation tasks.
        perfect_score: Reward that cannot be exceeded: nothing is to be learned from a minibatch
            where all rewards are that high, and the search ends when they are on all validation
            tasks. None if there is no such reward.
        use_merge: Whether prompts of two good candidates are combined, too.
        max_merge_invocations: Most of these combinations that are kept.
        rollout_batch_timeout: Seconds that one batch of rollouts may take; what is not done by then
            is cancelled and counts 0. Batches that run at the same time get as much more.
        seed: Makes a run repeatable, as far as agent and model are. With it, requests to the model
            carry a seed, too.
        prompts_dir: A folder with prompt files of your own, ``reflect*.jinja``.
        max_rollouts: Most rollouts; an iteration that may not fit is not begun.
        max_calls: Most calls of the model; the search stops when they are made.
        max_tokens: Tokens of the model, in and out, after which it stops.
        max_cost: Money spent on the model after which it stops; needs ``prices``.
        prices: What the model costs, by name.
        call_timeout: Seconds that an answer may take.
        output_dir: A folder for ``history.csv``, ``curve.csv`` and ``curve.png``; None writes none.

    Raises:
        ConfigError: A cost limit without prices, or a prompt folder that cannot be used.
    """

    def __init__(
        self,
        async_openai_client: ChatClient | None = None,
        *,
        reflection_model: str = "gpt-5-mini",
        temperature: float = 1.0,
        components: Sequence[str] | None = None,
        max_iterations: int = 50,
        proposals_per_iteration: int = 1,
        reflection_minibatch_size: int = 3,
        candidate_selection_strategy: Selection = "pareto",
        module_selector: ModuleSelector = "round_robin",
        acceptance_criterion: Acceptance = "strict_improvement",
        perfect_score: float | None = 1.0,
        use_merge: bool = False,
        max_merge_invocations: int = 5,
        rollout_batch_timeout: float = 3600.0,
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
        self.reflection_model = reflection_model
        self.temperature = temperature
        self.components = None if components is None else tuple(components)
        self.settings = Settings(
            max_iterations=max_iterations,
            proposals_per_iteration=proposals_per_iteration,
            reflection_minibatch_size=reflection_minibatch_size,
            candidate_selection_strategy=candidate_selection_strategy,
            module_selector=module_selector,
            acceptance_criterion=acceptance_criterion,
            perfect_score=perfect_score,
            use_merge=use_merge,
            max_merge_invocations=max_merge_invocations,
        )
        self.rollout_batch_timeout = rollout_batch_timeout
        self.seed = seed
        sample = {"name": "prompt", "others": {"other": "Be brief."}}
        self.prompts = PromptFiles("agl_algo_gepa", {"reflect": sample}, prompts_dir)
        self.budget = Budget.of(
            reflection_model,
            rollouts=max_rollouts,
            calls=max_calls,
            tokens=max_tokens,
            cost=max_cost,
            prices=prices,
        )
        self.call_timeout = call_timeout
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.state: GEPAState | None = None
        self._templates: Mapping[str, PromptTemplate] = {}

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[T] | None = None,
        val_dataset: Dataset[T] | None = None,
    ) -> None:
        """Search, and write the best prompts back to the store.

        Raises:
            ValueError: A dataset is missing or empty, the adapter is no ``TraceToMessages``, or the
                initial resources hold no prompt template or a malformed one.
            ConfigError: A component is no prompt template, or the run was begun in another way.
        """
        store, run = self.get_store(), self.get_run()
        train = require_tasks("GEPA", "train_dataset", train_dataset)
        val = require_tasks("GEPA", "val_dataset", val_dataset)
        adapter = require_messages("GEPA", self.get_adapter())
        initial = self.get_initial_resources() or {}
        self._templates = templates = self._choose(initial)
        seed_prompts = {name: template.template for name, template in templates.items()}
        self.state = state = self._state_of(run, seed_prompts, len(train), len(val))
        others = add_llm(initial, llm_proxy)

        def resources_of(version: str) -> NamedResources:
            # The others come along: the agent may need them, too.
            return {**others, **self._filled_in(state.candidate(version))}

        snapshots = Snapshots(store, run, resources_of)
        many = self.settings.proposals_per_iteration
        minibatch = min(self.settings.reflection_minibatch_size, len(train))
        async with open_client(self.async_openai_client) as client:
            with show_progress("GEPA", self.settings.max_iterations) as progress:
                evolution = Evolution(
                    state,
                    run=run,
                    store=store,
                    adapter=adapter,
                    train=train,
                    val=val,
                    snapshots=snapshots,
                    templates=templates,
                    model=MeteredModel(
                        client,
                        self.budget,
                        state.spent,
                        temperature=self.temperature,
                        timeout=self.call_timeout,
                    ),
                    reflection_model=self.reflection_model,
                    files=self.prompts,
                    send_seed=self.seed is not None,
                    budget=self.budget,
                    iteration_rollouts=many * (2 * minibatch + len(val)),
                    iteration_calls=many * self._components_per_edit(),
                    max_rounds=self.settings.max_iterations,
                    perfect_score=self.settings.perfect_score,
                    batch_timeout=self.rollout_batch_timeout,
                    reporter=Reporter(progress, self.report_step, "gepa"),
                )
                bridge = Bridge()
                engine = partial(
                    optimise,
                    self.settings,
                    evolution,
                    bridge,
                    seed_prompts=seed_prompts,
                    n_train=len(train),
                    n_val=len(val),
                    seed=state.seed,
                )
                try:
                    if evolution.may_begin():
                        await bridge.run(engine)
                finally:  # also when it was stopped: what was found is kept
                    await snapshots.write_back(state.best)
                    if self.output_dir is not None:
                        write_files(state, self.output_dir)

    def _choose(self, initial: NamedResources) -> Mapping[str, PromptTemplate]:
        """Return the prompts that evolve."""
        found = prompt_templates("GEPA", initial)
        names = found if self.components is None else self.components
        for name in names:
            if name not in found:
                raise ConfigError(
                    f"{name!r} is none of the prompt templates {', '.join(found)}",
                    path="algorithm.components",
                )
        return {name: found[name] for name in names}

    def _components_per_edit(self) -> int:
        return len(self._templates) if self.settings.module_selector == "all" else 1

    def _state_of(
        self, run: Run, seed_prompts: dict[str, str], n_train: int, n_val: int
    ) -> GEPAState:
        """Return a new state, with the journal that the run was saved with.

        Raises:
            ConfigError: The run was begun with other prompts, tasks or options.
        """
        settings = asdict(self.settings)
        del settings["max_iterations"]  # more of them may follow
        plan = {**settings, "training tasks": n_train, "validation tasks": n_val}
        seed = SystemRandom().getrandbits(32) if self.seed is None else self.seed
        first = Candidate(version="v0", prompts=seed_prompts)
        if run.state is None:
            return GEPAState(seed=seed, history=[first], plan=plan)
        saved = GEPAState.model_validate(run.state)
        changed = [name for name, value in saved.plan.items() if plan.get(name) != value]
        if saved.history[0].prompts != seed_prompts:
            changed.append("prompts")
        if changed:
            raise ConfigError(
                f"the run {run.name!r} was begun with other {', '.join(changed)}; give it "
                "another name",
                path="algorithm",
            )
        return GEPAState(seed=saved.seed, history=[first], plan=plan, journal=saved.journal)

    def _filled_in(self, candidate: Candidate) -> dict[str, PromptTemplate]:
        return {
            name: template.model_copy(update={"template": candidate.prompts[name]})
            for name, template in self._templates.items()
        }

    def get_best_prompts(self) -> dict[str, PromptTemplate]:
        """Return the best prompts of the last run, or of this one so far, by name.

        Raises:
            ValueError: There was no run.
        """
        state = self._ran()
        return self._filled_in(state.candidate(state.best))

    @property
    def history(self) -> Sequence[Candidate]:
        """Every candidate of the last run, rejected ones too, in the order of their proposal.

        Raises:
            ValueError: There was no run.
        """
        return list(self._ran().history)

    def _ran(self) -> GEPAState:
        if self.state is None:
            raise ValueError("GEPA has not run yet: call Trainer.fit first")
        return self.state
