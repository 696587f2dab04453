"""The trainer: builds the components, and hands the two bundles of a run to a strategy.

::

    trainer = Trainer(algorithm=search, n_runners=8, strategy="shm",
                      initial_resources={"prompt": PromptTemplate(...)})
    trainer.fit(agent, train_tasks, val_dataset=val_tasks)
    best = asyncio.run(trainer.store.get_latest_resources())
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import agl_core
from agl_core.adapter import Adapter
from agl_core.agent import LitAgent, load_environment
from agl_core.agent._no_proxy import call_directly
from agl_core.algorithm import (
    Algorithm,
    BatchOutcome,
    ComparisonOutcome,
    FastAlgorithm,
    RewardRange,
    RolloutOutcome,
)
from agl_core.errors import ConfigError
from agl_core.execution import ExecutionStrategy
from agl_core.garbage import fewer_collections
from agl_core.ids import generate_id
from agl_core.llm_server import LLMServer
from agl_core.metrics import MeasureCalls, Metrics, build_tracker, recording
from agl_core.plugins import ComponentLike, build_component, flush_listeners, notify
from agl_core.proxy import LLMProxy
from agl_core.runner import Hook, Runner, choose_concurrency
from agl_core.store import InterceptorLike, LightningStore, installed_interceptors, intercept
from agl_core.tracer import Tracer
from agl_core.trainer._bundles import AlgorithmSide, RunnerSide
from agl_core.trainer._components import (
    check_integer,
    check_resources,
    check_text,
    default_adapter,
    default_strategy,
    describe_parts,
    hooks_of,
    interceptors_of,
    run_class,
)
from agl_core.trainer._datasets import check_dataset
from agl_core.trainer._loops import outside_loop
from agl_core.trainer._verdict import check_outcome, check_success
from agl_core.types import Dataset, NamedResources

logger = logging.getLogger(__name__)


class Trainer:
    """Builds the components of a run, and runs it.

    A component is given as an instance, a registered name (``"sqlite"``), a dict
    ``{"type": name, **config}``, a dotted path, a class, or a TOML or YAML file.

    Args:
        n_runners: Number of runners (processes of ``cs``, threads of ``shm``); a strategy given as
            an instance keeps its own number.
        max_rollouts: Largest number of rollouts per runner.
        concurrency: Number of rollouts that each runner runs at a time: async agents share its
            event loop, sync agents get a thread each. None: 1, or 8 per core and at most 64 of an
            agent that declares ``concurrent``, such as ``@rollout(concurrent=True)``.
        initial_resources: The resources the algorithm starts from.
        tracer: Records what agents do as spans; ``otel`` by default.
        adapter: Turns spans into data for the algorithm; ``triplet`` by default, if it is
            installed. The default is built when it is first used.
        store: Keeps tasks, spans and resources; ``memory`` by default.
        runner: Runs the agent; ``agent`` by default.
        strategy: Where the algorithm and the runners run. By default ``cs`` (processes around a
            store server) if it is installed, else ``shm`` (threads of this process); the
            log says which.
        port: Port of the store server, for strategies that have one.
        algorithm: Improves the resources. None: the runners run rollouts that others enqueue.
        proxy: The proxy between agents and models. A dict without a type means ``direct``.
        llm_server: Serves the model that is trained, behind the proxy (``direct``, unless
            ``proxy`` names another); it runs while the algorithm does.
        hooks: Callbacks around each rollout.
        tracker: Where the metrics of the run go: one backend, or a list of them; none by default.
        interceptors: Code around the calls of the run's store, the outermost first; the installed
            interceptors come before them. :attr:`store` itself stays as it is.
        llm_proxy: The same as ``proxy``, as agent-lightning 0.3 names it.
        run: Name of the run, for :meth:`fit` and :meth:`dev`. A run of this name in the store is
            resumed; a finished one does nothing. Without a name every call is a new run.
        reward_range: Lowest and highest possible reward, such as ``(0, 10)``; by default what the
            agent declares. A failed rollout counts the lower end, and searches stop at the upper
            end. Without it both are learned (:class:`~agl_core.algorithm.RewardScale`).

    Attributes:
        interrupted: Whether Ctrl+C ended the last run.
        resume_command: A command that resumes the run, for its history; empty if there is none.

    Raises:
        ConfigError: An argument is wrong; the message starts with its name.
        PluginError: A component asked for by name cannot be used.
    """

    def __init__(
        self,
        *,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        concurrency: int | None = None,
        initial_resources: NamedResources | None = None,
        tracer: ComponentLike[Tracer] = None,
        adapter: ComponentLike[Adapter[Any, Any]] = None,
        store: ComponentLike[LightningStore] = None,
        runner: ComponentLike[Runner[Any]] = None,
        strategy: ComponentLike[ExecutionStrategy] = None,
        port: int | None = None,
        algorithm: ComponentLike[Algorithm] = None,
        llm_proxy: ComponentLike[LLMProxy] = None,
        llm_server: ComponentLike[LLMServer] = None,
        hooks: Hook | Sequence[Hook] | None = None,
        proxy: ComponentLike[LLMProxy] = None,
        run: str | None = None,
        tracker: ComponentLike[Metrics] | Sequence[ComponentLike[Metrics]] = None,
        interceptors: InterceptorLike | Sequence[InterceptorLike] | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        check_integer("n_runners", n_runners, least=1)
        check_integer("max_rollouts", max_rollouts, least=0)
        check_integer("concurrency", concurrency, least=1)
        check_integer("port", port, least=0, most=65535)
        check_text("run", run)
        if llm_proxy is not None and proxy is not None:
            raise ConfigError("is the same as proxy; give one of them", path="llm_proxy")

        self.max_rollouts = max_rollouts
        self.initial_resources = check_resources(initial_resources)
        self.run = run or ""
        self.reward_range = RewardRange.of(reward_range)
        self.hooks = hooks_of(hooks)
        self.trackers = build_tracker(tracker)
        self.interceptors = interceptors_of(interceptors)
        self.interrupted = False
        self.resume_command = ""
        supplies: dict[str, Any] = {"n_runners": n_runners or 1}
        ports = {} if port is None else {"server_port": port, "port": port}
        default = default_strategy()
        self.strategy: ExecutionStrategy = build_component(
            "execution", strategy, default=default.name, inject=supplies | ports, path="strategy"
        )
        given = type(self.strategy).__qualname__
        self._strategy_note = default.reason if strategy is None else given
        if port is not None and hasattr(self.strategy, "server_port"):
            setattr(self.strategy, "server_port", port)  # noqa: B010 - also of a given instance
        self.n_runners = self.strategy.n_runners
        build = partial(build_component, inject=supplies)

        def optional(kind: str, spec: Any, **more: Any) -> Any:
            return None if spec is None else build(kind, spec, **more)

        self.store: LightningStore = build("store", store, default="memory")
        supplies |= {"n_runners": self.n_runners, "store": self.store}
        self.tracer: Tracer = build("tracer", tracer, default="otel")
        supplies["tracer"] = self.tracer
        if adapter is not None:
            self._adapter = build("adapter", adapter, default="triplet")
        self.algorithm: Algorithm | None = optional("algorithm", algorithm)
        self.llm_server: LLMServer | None = optional("llm_server", llm_server)
        spec = llm_proxy if proxy is None else proxy
        if spec is None and self.llm_server is not None:
            spec = "direct"
        self.llm_proxy: LLMProxy | None = optional("proxy", spec, default="direct")
        limits = {"max_rollouts": max_rollouts, "concurrency": concurrency}
        supplies |= {name: value for name, value in limits.items() if value is not None}
        self.runner: Runner[Any] = build("runner", runner, default="agent")

    @property
    def adapter(self) -> Adapter[Any, Any] | None:
        """The adapter that was given, else the default, which is built when it is first read."""
        return self._adapter

    @adapter.setter
    def adapter(self, adapter: Adapter[Any, Any] | None) -> None:
        self._adapter = adapter

    @cached_property
    def _adapter(self) -> Adapter[Any, Any] | None:
        supplies = {"n_runners": self.n_runners, "store": self.store, "tracer": self.tracer}
        name = default_adapter()
        return build_component("adapter", name, inject=supplies) if name else None

    # -- running ---------------------------------------------------------------------------------

    def fit(
        self,
        agent: LitAgent[Any] | str,
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Run the algorithm with the agent until the algorithm is done.

        Ctrl+C stops the run cleanly, sets :attr:`interrupted` and returns; the store keeps its
        content. Results are in :attr:`store` and in the algorithm.

        Args:
            agent: The agent to train, or the reference of an environment, such as
                ``"gymnasium:FrozenLake-v1"``, which also has the tasks that are not given.
            train_dataset: Tasks to learn from.
            val_dataset: Tasks to measure on.

        Raises:
            ConfigError: ``agent`` is not an agent, or a dataset is not a dataset.
            RunFailedError: Rollouts failed and none succeeded.
            Exception: The error of the algorithm, a runner or the store.
        """
        with outside_loop():
            start = asyncio.run(self.store.now())
            self._execute("fit", agent, self.algorithm, train_dataset, val_dataset)
            if not self.interrupted:
                asyncio.run(check_success(self.store, start))

    def dev(
        self,
        agent: LitAgent[Any] | str,
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Like :meth:`fit` with a fast algorithm: the given one, or ``baseline``.

        Raises:
            TypeError: The algorithm is not a :class:`~agl_core.algorithm.FastAlgorithm`.
            RunFailedError: Rollouts failed and none succeeded.
        """
        algorithm = build_component("algorithm", self.algorithm, default="baseline")
        if not isinstance(algorithm, FastAlgorithm):
            raise TypeError(
                f"dev takes a FastAlgorithm, not {type(algorithm).__qualname__}; use fit, or a "
                "trainer without an algorithm"
            )
        with outside_loop():
            start = asyncio.run(self.store.now())
            self._execute("dev", agent, algorithm, train_dataset, val_dataset)
            if not self.interrupted:
                asyncio.run(check_success(self.store, start))

    def evaluate(
        self,
        agent: LitAgent[Any] | str,
        dataset: Dataset[Any],
        *,
        resources: NamedResources | str | None = None,
        attempts: int = 1,
        timeout: float | None = None,
        run: str = "",
        is_enough: Callable[[Sequence[RolloutOutcome]], bool] | None = None,
    ) -> BatchOutcome:
        """Run the agent over a dataset, updating nothing.

        Args:
            agent: The agent to measure; see :meth:`fit`.
            dataset: The tasks; each becomes a rollout of mode ``test``.
            resources: The resources to run with, or the id of a stored snapshot; by default the
                latest in the store, else the initial resources.
            attempts: Rollouts of each task.
            timeout: Longest time for the whole dataset, in seconds; the rest is cancelled.
            run: Name of the evaluation, under which an interrupted one is resumed.
            is_enough: Called with new outcomes; once it returns True, no further rollouts begin.

        Returns:
            An outcome per rollout; its ``score()`` is the mean reward with its interval.

        Raises:
            ConfigError: The evaluation of this name is finished.
            KeyboardInterrupt: Ctrl+C ended the evaluation without a result.
            RunFailedError: Rollouts failed and none succeeded; it has the ``outcome``.
        """
        evaluation = _fast(
            "evaluation",
            resources=resources,
            attempts=attempts,
            timeout=timeout,
            is_enough=is_enough,
        )
        with outside_loop():
            self._execute("eval", agent, evaluation, None, dataset, run)
            outcome: BatchOutcome | None = evaluation.outcome
            if outcome is None:
                raise self._without_result(run)
            asyncio.run(check_outcome(self.store, outcome))
        return outcome

    def compare(
        self,
        agent: LitAgent[Any] | str,
        dataset: Dataset[Any],
        *,
        before: NamedResources | str | None,
        after: NamedResources | str | None,
        attempts: int = 1,
        timeout: float | None = None,
        run: str = "",
    ) -> ComparisonOutcome:
        """Run the agent over a dataset with two sets of resources at once, updating nothing.

        Args:
            agent: The agent to measure; see :meth:`fit`.
            dataset: The tasks, which nothing was chosen on; each becomes rollouts of mode ``test``.
            before: Resources, or the id of a stored snapshot; None as in :meth:`evaluate`.
            after: The resources to compare with them.
            attempts: Rollouts of each task with each.
            timeout: Longest time for the whole dataset, in seconds; the rest is cancelled.
            run: Name of the comparison, under which an interrupted one is resumed.

        Returns:
            The outcomes; their ``gain()`` is paired by task.

        Raises:
            ConfigError: The comparison of this name is finished.
            KeyboardInterrupt: Ctrl+C ended the comparison without a result.
            RunFailedError: Rollouts failed and none succeeded on either side.
        """
        comparison = _fast(
            "comparison", before=before, after=after, attempts=attempts, timeout=timeout
        )
        with outside_loop():
            self._execute("eval", agent, comparison, None, dataset, run)
            outcome: ComparisonOutcome | None = comparison.outcome
            if outcome is None:
                raise self._without_result(run)
            sides = outcome.before, outcome.after
            if not any("succeeded" in side.statuses() for side in sides):
                for side in sides:
                    asyncio.run(check_outcome(self.store, side))
        return outcome

    def _without_result(self, run: str) -> BaseException:
        """Return why an evaluation has no outcome: it was interrupted, or did not run."""
        if self.interrupted:
            return KeyboardInterrupt()
        return ConfigError(f"{run!r} is finished; give another name", path="run")

    def _execute(
        self,
        mode: str,
        agent: LitAgent[Any] | str,
        algorithm: Algorithm | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        run: str = "",
    ) -> None:
        if isinstance(agent, str) and (environment := load_environment(agent)):
            agent = environment.agent
            if train_dataset is None and mode != "eval":
                train_dataset = environment.train_dataset
            if val_dataset is None:
                val_dataset = environment.val_dataset
        if not isinstance(agent, LitAgent):
            raise ConfigError(
                f"{agent!r} is not an agent; decorate a function with @rollout or derive from "
                "LitAgent, or name an environment",
                path="agent",
            )
        agent.check_signature()
        call_directly()
        run = run if mode == "eval" else self.run
        lead = AlgorithmSide(
            trainer=self,
            algorithm=algorithm,
            adapter=self.adapter,
            llm_proxy=self.llm_proxy,
            llm_server=self.llm_server,
            initial_resources=self.initial_resources,
            train_dataset=check_dataset("train_dataset", train_dataset),
            val_dataset=check_dataset("val_dataset", val_dataset),
            run=run,
            run_class=run_class(run),
            trackers=self.trackers,
            reward_range=self.reward_range
            or RewardRange.of(agent.reward_range, path="agent.reward_range"),
            about={
                "mode": mode,
                "began": time.time(),
                "version": agl_core.__version__,
                "command": self.resume_command,
                "n_runners": self.n_runners,
                "parts": describe_parts(self._parts(algorithm)),
            },
        )
        agent.set_trainer(self)
        worker = RunnerSide(
            self.runner,
            agent,
            self.hooks,
            self.llm_proxy,
            self.trackers,
            needs_resources=algorithm is None and bool(self.initial_resources),
        )
        measured = (MeasureCalls(),) if self.trackers else ()
        listed = (*installed_interceptors(), *self.interceptors, *measured)
        store = intercept(self.store, *listed)
        run_id = f"run-{generate_id(8)}"
        logger.info("Execution strategy: %s", self._strategy_note)
        logger.info("%s", self._describe_width(agent))
        with recording(*self.trackers):
            notify("run_started", run_id=run_id, mode=mode, config=self._describe(algorithm))
            error: BaseException | None = None
            try:
                with fewer_collections():
                    self.strategy.execute(lead, worker, store)
            except BaseException as raised:
                error = raised
                raise
            finally:
                self.interrupted = self.strategy.interrupted
                notify("run_finished", run_id=run_id, mode=mode, error=error)
                flush_listeners()

    def __getstate__(self) -> dict[str, Any]:
        # In another process, the run sets the store that is used there.
        return {name: value for name, value in self.__dict__.items() if name != "store"}

    def _describe_width(self, agent: LitAgent[Any]) -> str:
        """Return how many rollouts run at a time, and why."""
        given = getattr(self.runner, "concurrency", None)
        each = choose_concurrency(agent, given)
        why = "one per runner; concurrency=… or @rollout(concurrent=True) allows more"
        if given is not None:
            why = f"concurrency={each} in each runner"
        elif agent.concurrent:
            why = f"{each} in each runner, since the agent is concurrent"
        return f"{self.n_runners} runners, {self.n_runners * each} rollouts at a time: {why}"

    def _parts(self, algorithm: Algorithm | None) -> dict[str, Any]:
        names = ("store", "strategy", "tracer", "adapter", "llm_proxy", "llm_server")
        parts = {"algorithm": algorithm, **{name: getattr(self, name) for name in names}}
        return {name: part for name, part in parts.items() if part is not None}

    def _describe(self, algorithm: Algorithm | None) -> dict[str, Any]:
        names = {k: type(v).__qualname__ for k, v in self._parts(algorithm).items()}
        return {**names, "n_runners": self.n_runners}


def _fast(name: str, **options: Any) -> Any:
    """Return the installed algorithm of this name that measures; it has an ``outcome``."""
    return build_component("algorithm", name, inject=options)
