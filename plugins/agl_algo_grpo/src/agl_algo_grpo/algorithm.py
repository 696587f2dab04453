"""The algorithm ``grpo``: collect rollouts of some tasks, train on them, publish weights, repeat.

::

    trainer = Trainer(
        algorithm=GRPO(model="path/of/model", steps=100, learning_rate=1e-6),
        adapter="trajectory",
        n_runners=8,
    )
    trainer.fit(agent, train_tasks, val_dataset=val_tasks)

The formulas are in :mod:`agl_algo_grpo.grpo`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import shutil
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import anyio

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.metrics import Metrics, draw_curve
from agl_algo_grpo.samples import Decision, Reason, Step, decide, staleness, version_of
from agl_algo_grpo.serving import Serving, build_server
from agl_core.adapter import TraceToTrajectory
from agl_core.algorithm import (
    Algorithm,
    BatchOutcome,
    Run,
    batch_iter_over_dataset,
    run_batch,
    show_progress,
)
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.llm_server import LLMServer
from agl_core.plugins import configured_by
from agl_core.proxy import LLMProxy
from agl_core.types import Dataset, RolloutConfig, RolloutMode

if TYPE_CHECKING:
    from agl_algo_grpo.batches import Row
    from agl_algo_grpo.policy import Policy

__all__ = ["GRPO"]

logger = logging.getLogger(__name__)


class GRPO(Algorithm):
    """Trains a language model on its agents' rollouts, in one process.

    Each step enqueues ``tasks_per_step`` tasks, ``group_size`` times each. Agents find the model
    among their resources, behind a proxy that records every token. Unusable rollouts are repeated,
    then dropped and counted; an incomplete group is dropped too unless ``min_group_size`` allows
    it. After the step, calls wait in the proxy until the server has loaded the new weights.

    A named run (``Trainer(run=…)``, ``agl train --resume``) resumes from its last checkpoint after
    any process was killed. Rollouts finished since that checkpoint are reused.

    Options: :class:`GRPOConfig`.
    """

    @configured_by(GRPOConfig)
    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self.metrics: Metrics | None = None
        self.output_dir: Path | None = None

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Train.

        Raises:
            ConfigError: There are no tasks, the adapter does not make trajectories, or the model
                cannot be found.
            LLMServerError: The server does not start, refuses weights, or dies too often.
            MissingDependencyError: PyTorch, Transformers or PEFT is not installed.
        """
        if train_dataset is None or not len(train_dataset):
            raise ConfigError("GRPO needs tasks", path="train_dataset")
        _check_libraries(lora=self.config.lora is not None)
        adapter = self.get_adapter()
        if not isinstance(adapter, TraceToTrajectory):
            raise ConfigError(
                'GRPO reads trajectories: use adapter="trajectory", '
                f"not a {type(adapter).__qualname__}",
                path="adapter",
            )
        training = _TrainingRun(self, adapter, train_dataset, val_dataset)
        self.metrics, self.output_dir = None, training.folder
        await training.run()

    def server(self, folder: Path) -> LLMServer:
        """Return the trainer's LLM server, or one made from the option ``server``.

        Raises:
            ConfigError: Both are set, or the option is invalid.
        """
        server = self.get_llm_server()
        if server is None:
            return build_server(self.config.server, folder)
        if self.config.server is not None:
            raise ConfigError("the trainer already has an llm_server", path="algorithm.server")
        return server

    def proxy(self) -> LLMProxy:
        """Return the trainer's proxy, or a new one for this run."""
        proxy = self.get_llm_proxy()
        if proxy is None:
            from agl_proxy_direct import DirectProxy

            return DirectProxy(store=self.get_store())
        if not isinstance(proxy, LLMProxy):
            raise ConfigError(f"{type(proxy).__qualname__} is not an LLMProxy", path="llm_proxy")
        return proxy


class _TrainingRun:
    """One call of :meth:`GRPO.run`."""

    def __init__(
        self,
        algorithm: GRPO,
        adapter: TraceToTrajectory,
        train: Dataset[Any],
        val: Dataset[Any] | None,
    ) -> None:
        self._algorithm = algorithm
        self._config = config = algorithm.config
        self._adapter = adapter
        self._train = train
        self._val = val if val is not None and len(val) else None
        self._store = algorithm.get_store()
        self._run: Run = algorithm.get_run()
        self.folder = Path(config.output_dir or Path("agl-runs", self._run.name or "grpo"))

    async def run(self) -> None:
        config = self._config
        base = await anyio.to_thread.run_sync(_find_model, config.model)
        policy, first = await anyio.to_thread.run_sync(self._prepare, base)
        metrics = self._algorithm.metrics = Metrics(self.folder, first)
        serving = Serving(self._algorithm.server(base), self._algorithm.proxy(), config)
        batches = batch_iter_over_dataset(self._train, config.tasks_per_step, seed=config.seed)
        plan = enumerate(itertools.islice(batches, first, config.steps), start=first)
        async with serving.running():
            await self._publish(serving, policy, first)
            with show_progress("GRPO", config.steps) as progress:
                progress.update(first)
                async with serving.guarded(), aclosing(self._steps(plan, serving, policy)) as rows:
                    async for row in rows:
                        metrics.add(row)
                        step = row["step"]
                        progress.update(step + 1, f"reward {row['reward']:.3f}")
                        figures = _finite(row)
                        self._algorithm.report_step(step, figures)
                        await self._checkpoint(policy, step + 1, figures)
        curves = {"train": metrics.column("reward"), "val": metrics.column("val_reward")}
        draw_curve(self.folder / "curve.png", curves)
        logger.info("the trained model is in %s", self.folder / "model")

    # -- one step --------------------------------------------------------------------------------

    async def _steps(
        self, plan: Iterator[tuple[int, Sequence[Any]]], serving: Serving, policy: Policy
    ) -> AsyncGenerator[dict[str, Any]]:
        """Collect, train and publish, step by step; yield the metrics of each step.

        Without overlap these follow one another. With overlap the next step's rollouts run while
        this one trains. New weights wait for them, or with ``partial_rollouts`` interrupt them
        between two model calls; then two steps' rollouts are in the queue, so no runner waits for
        the last rollouts of a step. Weights are at most one update older than the rollouts' step.
        """
        config = self._config
        waits = config.overlap and not config.partial_rollouts
        collections: deque[asyncio.Task[Step]] = deque()

        def collect(limit: int) -> None:
            while len(collections) < limit and (item := next(plan, None)) is not None:
                collections.append(asyncio.create_task(self._collect(*item, serving)))

        depth = 2 if config.partial_rollouts else 1
        collect(depth)
        began, restarts = time.monotonic(), serving.restarts
        try:
            while collections:
                selected = await collections[0]
                collections.popleft()
                collected = time.monotonic()
                serving.reset_limit()
                if waits:
                    collect(depth)
                row = await self._train_step(selected, serving, policy)
                if waits and collections:
                    await asyncio.wait(collections)
                row["publish_seconds"] = await self._publish(serving, policy, selected.number + 1)
                if self._is_validated(selected.number + 1):
                    row["val_reward"] = await self._validate(selected.number + 1, serving)
                collect(depth)
                row["server_restarts"] = serving.restarts - restarts
                row["wait_seconds"] = collected - began
                row["seconds"] = time.monotonic() - began
                began, restarts = time.monotonic(), serving.restarts
                yield row
        finally:
            for task in collections:
                task.cancel()
            await asyncio.gather(*collections, return_exceptions=True)

    async def _train_step(self, selected: Step, serving: Serving, policy: Policy) -> dict[str, Any]:
        """Train on a step's rollouts; return its metrics."""
        step = selected.number
        row: dict[str, Any] = {"step": step, "version": serving.version}
        logger.info("step %d: %s", step, selected.certificates)
        dropped = selected.describe_dropped()
        if dropped:
            expected = set(selected.dropped) == {Reason.UNIFORM}  # replaced, as was asked for
            level = logging.INFO if expected else logging.WARNING
            logger.log(level, "step %d drops rollouts: %s", step, dropped)
        if selected.partial:
            logger.warning("step %d trains on %d incomplete groups", step, selected.partial)
        began = time.monotonic()
        if selected.samples:
            row |= await anyio.to_thread.run_sync(self._train_on, policy, selected)
        else:
            logger.warning("step %d has no usable rollouts; the weights stay", step)
        return row | {
            "reward": fmean(selected.rewards) if selected.rewards else float("nan"),
            "reward_std": pstdev(selected.rewards) if selected.rewards else float("nan"),
            "rollouts": len(selected.samples),
            "rows": sum(len(sample.rows) for sample in selected.samples),
            "tokens": sum(len(r.token_ids) for sample in selected.samples for r in sample.rows),
            "dropped_rollouts": sum(selected.dropped.values()),
            "dropped_rows": selected.dropped_rows,
            "dropped_groups": selected.dropped_groups,
            "rows_after_a_break": selected.certificates.breaks.total(),
            "partial_groups": selected.partial,
            "uniform_groups": selected.uniform,
            "retried_rollouts": sum(selected.retried.values()),
            "rollout_seconds": selected.seconds,
            "train_seconds": time.monotonic() - began,
            "dropped": dropped,
        }

    def _is_validated(self, done: int) -> bool:
        every = self._config.validate_every
        last = done == self._config.steps
        return self._val is not None and (last or (every > 0 and done % every == 0))

    async def _collect(self, step: int, tasks: Sequence[Any], serving: Serving) -> Step:
        """Run the rollouts of a step; replace groups without a signal, up to ``resample`` times."""
        began = time.monotonic()
        decisions, retried = await self._groups(step, f"step-{step}", tasks, serving)
        selected = Step.of(decisions, self._config)
        for number in range(1, self._config.resample + 1):
            missing = len(tasks) - len(selected.groups)
            if not missing:
                break
            # The same draw in a resumed run, which finds these rollouts in the store by their name.
            order = random.Random(f"{self._config.seed}-{step}-{number}")
            drawn = [self._train[i] for i in order.sample(range(len(self._train)), missing)]
            more, again = await self._groups(step, f"step-{step}-more-{number}", drawn, serving)
            decisions += more
            retried += again
            selected = Step.of(decisions, self._config)
        selected.retried.update(decision.reason for decision in retried)
        selected.number, selected.seconds = step, time.monotonic() - began
        return selected

    async def _groups(
        self, step: int, name: str, tasks: Sequence[Any], serving: Serving
    ) -> tuple[list[list[Decision]], list[Decision]]:
        """Run a group of rollouts for each task; repeat unusable ones, up to ``retries`` times.

        Returns:
            The decisions on each group's rollouts, and the decisions that led to repetitions.
        """
        size = self._config.group_size
        decisions: dict[tuple[int, int], Decision] = {}
        missing = [(group, member) for group in range(len(tasks)) for member in range(size)]
        retried: list[Decision] = []
        tries = 0
        first = name
        versions = {version_of(step - age) for age in range(self._config.overlap + 1)}
        while True:
            restarts = serving.restarts
            batch = await self._rollouts(name, [tasks[g] for g, _ in missing], serving, "train")
            for slot, outcome in zip(missing, batch, strict=True):
                decisions[slot] = decide(outcome, self._adapter, self._config, versions)
            missing = [s for s in missing if decisions[s].reason and decisions[s].failed]
            if missing:
                await serving.ensure()
            # Rollouts lost to a server's death do not count as retries: `Serving` limits restarts.
            tries += serving.restarts == restarts
            if not missing or tries > self._config.retries:
                break
            retried += [decisions[slot] for slot in missing]
            # The name identifies these rollouts, so that a resumed run finds them in the store.
            name = f"{first}-again-{zlib.crc32(repr((name, missing)).encode()):08x}"
        groups = [
            [decisions[group, member] for member in range(size)] for group in range(len(tasks))
        ]
        return groups, retried

    async def _rollouts(
        self, name: str, tasks: Dataset[Any], serving: Serving, mode: RolloutMode
    ) -> BatchOutcome:
        return await run_batch(
            self._store,
            tasks,
            resources=serving.as_resources(),
            mode=mode,
            config=RolloutConfig(timeout_seconds=self._config.rollout_timeout),
            timeout=self._config.step_timeout,
            description=name,
            run=self._run,
            name=name,
        )

    async def _validate(self, step: int, serving: Serving) -> float:
        assert self._val is not None
        batch = await self._rollouts(f"val-{step}", self._val, serving, "val")
        return batch.score().mean

    # -- in a thread: PyTorch --------------------------------------------------------------------

    def _prepare(self, base: Path) -> tuple[Policy, int]:
        """Load the model and the last checkpoint, if any; return the policy and its next step."""
        from agl_algo_grpo.policy import Policy

        policy = Policy(self._config, base)
        state = self._run.state
        folder = self._config.resume_from if state is None else state["checkpoint"]
        if folder is None:
            return policy, 0
        first = policy.restore(folder)
        logger.info("resuming at step %d from %s", first, folder)
        return policy, first

    def _train_on(self, policy: Policy, selected: Step) -> dict[str, float]:
        from agl_algo_grpo.grpo import update

        config, step = self._config, selected.number
        figures = update(policy, _to_rows(selected, config), config, step)
        tolerance = config.logprob_tolerance or policy.default_tolerance
        if figures["logprob_delta"] > tolerance:
            message = (
                f"step {step}: the server's log-probabilities differ from the trainer's by "
                f"{figures['logprob_delta']:.2g}, more than {tolerance:g}"
            )
            if config.on_mismatch == "raise":
                raise ArithmeticError(message)
            logger.warning("%s", message)
        return figures

    # -- weights ---------------------------------------------------------------------------------

    async def _publish(self, serving: Serving, policy: Policy, step: int) -> float:
        """Load the weights after ``step`` steps into the server; return the seconds it took."""
        if step == 0 and self._config.lora is None:
            return await serving.publish(None, version_of(0))  # the server starts with these
        folder = self.folder / "weights" / version_of(step)
        await anyio.to_thread.run_sync(policy.export, folder)
        seconds = await serving.publish(folder, version_of(step))
        for old in folder.parent.iterdir():
            if old != folder:
                await anyio.to_thread.run_sync(shutil.rmtree, old)
        return seconds

    async def _checkpoint(self, policy: Policy, done: int, figures: Mapping[str, float]) -> None:
        """Write a checkpoint if one is due, and the model after the last step."""
        config = self._config
        last = done == config.steps
        if last:
            await anyio.to_thread.run_sync(policy.export, self.folder / "model")
        if not last and done % config.checkpoint_every:
            return
        folder = self.folder / "checkpoints" / f"step-{done}"
        await anyio.to_thread.run_sync(policy.save, folder, done)
        await self._run.save({"checkpoint": str(folder.absolute())}, figures)
        kept = sorted(folder.parent.glob("step-*"), key=lambda p: int(p.name.rpartition("-")[2]))
        for old in kept[: -config.keep_checkpoints]:
            await anyio.to_thread.run_sync(shutil.rmtree, old)


def _finite(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are finite numbers; stores and listeners take no others."""
    return {k: v for k, v in row.items() if isinstance(v, (int, float)) and math.isfinite(v)}


def _to_rows(selected: Step, config: GRPOConfig) -> list[Row]:
    """Return the rows of a step as tensors, with the advantages of their rollouts."""
    import torch

    from agl_algo_grpo.batches import Row
    from agl_algo_grpo.grpo import group_advantages

    samples = selected.samples
    groups = [group.index for group in selected.groups for _ in group.samples]
    advantages = group_advantages(
        torch.tensor([sample.reward for sample in samples], dtype=torch.float64),
        torch.tensor(groups),
        config.advantage,
    ).tolist()
    return [
        Row(
            token_ids=torch.tensor(row.token_ids),
            mask=torch.tensor(row.mask, dtype=torch.bool),
            logprobs=torch.tensor(row.logprobs),
            advantages=torch.full((len(row.token_ids),), advantage),
            rollout=number,
            staleness=staleness(row, selected.number),
        )
        for number, (sample, advantage) in enumerate(zip(samples, advantages, strict=True))
        for row in sample.rows
    ]


def _check_libraries(*, lora: bool) -> None:
    """Check before the run starts that the heavy packages are installed.

    Raises:
        MissingDependencyError: One of them is not.
    """
    from importlib.util import find_spec

    for package in ("torch", "transformers", *(("peft",) if lora else ())):
        if find_spec(package) is None:
            raise MissingDependencyError("algorithm.grpo", pip=package)


def _find_model(name: str | Path) -> Path:
    """Return the folder of a model; a name that is not a folder is downloaded from the hub.

    Raises:
        ConfigError: The model cannot be found.
    """
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder.absolute()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name)))
    except Exception as error:  # many types: unknown name, no network, no permission
        raise ConfigError(
            f"{name} is not a model's folder and cannot be downloaded from the hub: {error}",
            path="algorithm.model",
        ) from error
