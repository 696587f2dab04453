"""The training loop: collect rollouts, train, publish weights, step by step."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import shutil
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Final

import anyio

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import sampling_advice
from agl_algo_grpo import credit
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.metrics import Metrics, draw_curve
from agl_algo_grpo.rollouts import Rollouts
from agl_algo_grpo.run_state import RunState, options_of, remove_all, steps_of
from agl_algo_grpo.samples import Reason, Step, staleness, version_of
from agl_algo_grpo.serving import Serving
from agl_core.algorithm import Run, batch_iter_over_dataset, show_progress
from agl_core.errors import ConfigError, RunFailedError
from agl_core.types import Dataset

if TYPE_CHECKING:
    from torch import Tensor

    from agl_algo_grpo.algorithm import GRPO
    from agl_algo_grpo.batches import Row
    from agl_algo_grpo.policy import Policy

__all__ = ["TrainingRun", "steps_of", "to_rows"]

logger = logging.getLogger(__name__)

BEST: Final = "best"
"""Folder of the model with the highest validation score, if the last one is not it."""
_STEP: Final = "agl_step.txt"
"""File in it with the number of the step that made it."""


class TrainingRun:
    """One call of :meth:`GRPO.run <agl_algo_grpo.GRPO.run>`."""

    def __init__(
        self,
        algorithm: GRPO,
        adapter: TraceToTrajectory,
        train: Dataset[Any],
        val: Dataset[Any] | None,
    ) -> None:
        self._algorithm = algorithm
        self._config = config = algorithm.config
        self._configs = config.policies()
        self._adapter = adapter
        self._train = train
        self._val = val if val is not None and len(val) else None
        self._run: Run = algorithm.get_run()
        self.folder = Path(config.output_dir or Path("agl-runs", self._run.name or "grpo"))
        # Several policies have a folder each.
        self._folders = {
            name: self.folder if config.is_single else self.folder / name for name in self._configs
        }
        self._policies: dict[str, Policy] = {}
        self._state = RunState(
            self._run, list(self._configs), config.is_single, options_of(config, train)
        )
        self._trained = False
        """Whether the run has trained a step, in this process or an earlier one."""

    async def run(self) -> None:
        config = self._config
        bases = {
            name: await anyio.to_thread.run_sync(_find_model, str(policy.model))
            for name, policy in self._configs.items()
        }
        checkpoints = await self._state.begin()
        first = await anyio.to_thread.run_sync(self._prepare, bases, checkpoints)
        self._trained = first > 0
        metrics = {
            name: Metrics(folder, first, self._label(name), self._run.reward_range)
            for name, folder in self._folders.items()
        }
        self._algorithm.policies = metrics
        backends = self._algorithm.backends(bases)
        for backend in backends:
            for name in backend.policies:
                if self._configs[name].lora is None:
                    backend.server.check_updates(bases[name])
        serving = Serving(backends, self._algorithm.proxy(), config)
        rollouts = Rollouts(
            self._algorithm.get_store(), serving, self._adapter, self._train, config, self._run
        )
        batches = batch_iter_over_dataset(self._train, config.tasks_per_step, seed=config.seed)
        plan = enumerate(itertools.islice(batches, first, config.steps), start=first)
        async with serving.running():
            await self._publish(serving, first)
            with show_progress("GRPO", config.steps) as progress:
                progress.update(first)
                steps = self._steps(plan, rollouts, serving)
                async with serving.guarded(), aclosing(steps) as finished:
                    async for rows in finished:
                        for name, row in rows.items():
                            metrics[name].add(row)
                            if metrics[name].steps[-1]["val_rank"] != "":
                                row["val_rank"] = metrics[name].steps[-1]["val_rank"]
                            await self._keep_best(name, metrics[name])
                        step = next(iter(rows.values()))["step"]
                        texts = [
                            f"{self._label(n)}reward {r['reward']:.3f}" for n, r in rows.items()
                        ]
                        progress.update(step + 1, ", ".join(texts))
                        figures = self._figures(rows)
                        self._algorithm.report_step(step, figures)
                        await self._checkpoint(step + 1, figures)
        if not self._trained and first < config.steps:
            raise RunFailedError(
                f"no step of {config.steps - first} had a rollout to train on; the log has the "
                "reasons, and metrics.csv the counts"
            )
        for name, folder in self._folders.items():
            columns = {"train": "reward", "val": "val_reward"}
            curves = {curve: metrics[name].column(key) for curve, key in columns.items()}
            draw_curve(folder / "curve.png", curves)
            logger.info("the trained model is in %s", folder / "model")
            told = describe_best(metrics[name], folder, config.steps)
            if told:
                logger.info("%s%s", self._label(name), told)

    def _figures(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Return the finite figures of a step; several policies' begin with the policy's name."""
        return {
            key if self._config.is_single else f"{name}/{key}": value
            for name, row in rows.items()
            for key, value in _finite(row).items()
        }

    def _label(self, name: str) -> str:
        """Return what texts about a policy begin with; empty if there is one only."""
        return "" if self._config.is_single else f"{name}: "

    # -- one step --------------------------------------------------------------------------------

    async def _steps(
        self,
        plan: Iterator[tuple[int, Sequence[Any]]],
        rollouts: Rollouts,
        serving: Serving,
    ) -> AsyncGenerator[dict[str, dict[str, Any]]]:
        """Collect, train and publish, step by step; yield each policy's metrics of each step.

        Without overlap these follow one another. With overlap the next step's rollouts run while
        this one trains. New weights wait for them, or with ``partial_rollouts`` interrupt them
        between two model calls; then two steps' rollouts are in the queue, so no runner waits for
        the last rollouts of a step. Weights are at most one update older than the rollouts' step.
        """
        config = self._config
        waits = config.overlap and not config.partial_rollouts
        collections: deque[asyncio.Task[dict[str, Step]]] = deque()

        def collect(limit: int) -> None:
            while len(collections) < limit and (item := next(plan, None)) is not None:
                collections.append(asyncio.create_task(rollouts.collect(*item)))

        depth = 2 if config.partial_rollouts else 1
        collect(depth)
        began, restarts = time.monotonic(), serving.restarts
        try:
            while collections:
                selected = await collections[0]
                collections.popleft()
                collected = time.monotonic()
                self._check_use(selected)
                serving.reset_limit()
                if waits:
                    collect(depth)
                rows = {
                    name: await self._train_step(name, part, serving)
                    for name, part in selected.items()
                }
                done = next(iter(selected.values())).number + 1
                if waits and collections:
                    await asyncio.wait(collections)
                seconds = await self._publish(serving, done)
                if self._val is not None and self._is_validated(done):
                    for name, found in (await rollouts.validate(done, self._val)).items():
                        rows[name] |= found.figures()
                collect(depth)
                common = {
                    "publish_seconds": seconds,
                    "server_restarts": serving.restarts - restarts,
                    "wait_seconds": collected - began,
                    "seconds": time.monotonic() - began,
                }
                began, restarts = time.monotonic(), serving.restarts
                yield {name: row | common for name, row in rows.items()}
        finally:
            for task in collections:
                task.cancel()
            await asyncio.gather(*collections, return_exceptions=True)

    def _check_use(self, selected: Mapping[str, Step]) -> None:
        """Stop a run whose first step shows that no step will train anything.

        Raises:
            RunFailedError: The agent or the configuration excludes every rollout of the step.
        """
        self._trained = self._trained or any(step.samples for step in selected.values())
        if self._trained:
            return
        said: list[str] = []
        for name, step in selected.items():
            if not step.dropped or not all(map(Reason.is_lasting, step.dropped)):
                return  # a later step may do better
            reason = f"{self._label(name)}{step.describe_dropped()}"
            if step.details:
                temperature = self._configs[name].temperature
                advice = sampling_advice(step.details, temperature, "GRPO(temperature=…)")
                reason += f": {advice}"
            said.append(reason)
        raise RunFailedError(f"no rollout of the first step can be trained on: {'; '.join(said)}")

    async def _train_step(self, name: str, selected: Step, serving: Serving) -> dict[str, Any]:
        """Train a policy on a step's rollouts; return its metrics."""
        step = selected.number
        row: dict[str, Any] = {"step": step, "version": serving.version}
        label = self._label(name)
        logger.info("%sstep %d: %s", label, step, selected.certificates)
        dropped = selected.describe_dropped()
        if dropped:
            expected = set(selected.dropped) == {Reason.UNIFORM}  # replaced, as was asked for
            level = logging.INFO if expected else logging.WARNING
            logger.log(level, "%sstep %d drops rollouts: %s", label, step, dropped)
        if selected.partial:
            logger.warning(
                "%sstep %d trains on %d incomplete groups", label, step, selected.partial
            )
        began = time.monotonic()
        config = self._configs[name]
        if selected.groups and not any(group.teaches(config) for group in selected.groups):
            logger.warning(
                "%sstep %d: in each group all rewards are equal, so it teaches nothing (an agent "
                "that passes a seed gets the same answer each time)",
                label,
                step,
            )
        if selected.samples:
            row |= await anyio.to_thread.run_sync(self._train_on, name, selected)
        else:
            logger.warning("%sstep %d has no usable rollouts; the weights stay", label, step)
        return row | {
            "reward": fmean(selected.rewards) if selected.rewards else float("nan"),
            "reward_std": pstdev(selected.rewards) if selected.rewards else float("nan"),
            "rollouts": len(selected.samples),
            "rows": sum(len(sample.rows) for sample in selected.samples),
            "tokens": sum(len(r.token_ids) for sample in selected.samples for r in sample.rows),
            "sampled_tokens": selected.sampled_tokens,
            "forks": sum(len(group.forks) for group in selected.groups),
            "skipped_forks": selected.skipped_forks,
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
        return last or (every > 0 and done % every == 0)

    # -- in a thread: PyTorch --------------------------------------------------------------------

    def _prepare(self, bases: Mapping[str, Path], checkpoints: Mapping[str, Path]) -> int:
        """Load the models and the last checkpoints, if any; return the next step.

        Args:
            bases: Folder of the model that each policy starts from.
            checkpoints: Last checkpoint of each policy, if the run has some.

        Raises:
            ConfigError: The checkpoints are of different steps.
        """
        from agl_algo_grpo.policy import Policy

        steps = set[int]()
        for name, config in self._configs.items():
            policy = self._policies[name] = Policy(config, bases[name])
            folder = checkpoints.get(name, config.resume_from)
            steps.add(0 if folder is None else policy.restore(folder))
        if len(steps) > 1:
            raise ConfigError(
                "the policies' checkpoints are of different steps", path="algorithm.resume_from"
            )
        (first,) = steps
        if first:
            logger.info("resuming at step %d", first)
        return first

    def _train_on(self, name: str, selected: Step) -> dict[str, float]:
        from agl_algo_grpo.update import update

        policy = self._policies[name]
        config, step = self._configs[name], selected.number
        figures = update(policy, to_rows(selected, config), config, step)
        tolerance = config.logprob_tolerance or policy.default_tolerance
        if figures["logprob_delta"] > tolerance:
            message = (
                f"{self._label(name)}step {step}: the server's log-probabilities differ from the "
                f"trainer's by {figures['logprob_delta']:.2g}, more than {tolerance:g} (mean "
                f"{figures['logprob_delta_mean']:.2g}, 99 % of the tokens at most "
                f"{figures['logprob_delta_p99']:.2g})"
            )
            if config.on_mismatch == "raise":
                raise ArithmeticError(message)
            logger.warning("%s", message)
        return figures

    # -- weights ---------------------------------------------------------------------------------

    async def _publish(self, serving: Serving, step: int) -> float:
        """Load the weights after ``step`` steps into the servers; return the seconds it took."""
        weights: dict[str, Path] = {}
        for name, config in self._configs.items():
            if step == 0 and config.lora is None:
                continue  # the server starts with these
            weights[name] = self._folders[name] / "weights" / version_of(step)
            await anyio.to_thread.run_sync(self._policies[name].export, weights[name])
        seconds = await serving.publish(weights, version_of(step))
        for folder in weights.values():
            others = [old for old in folder.parent.iterdir() if old != folder]
            await anyio.to_thread.run_sync(remove_all, others)
        return seconds

    async def _keep_best(self, name: str, metrics: Metrics) -> None:
        """Export the model of the last step if it is better on the validation tasks than ``best``.

        The last model of the run is kept in any case.
        """
        step, best = metrics.steps[-1]["step"], self._folders[name] / BEST
        if step + 1 == self._config.steps or not is_better(metrics, best):
            return
        part = best.with_name(f"{BEST}.part")
        await anyio.to_thread.run_sync(self._policies[name].export, part)
        (part / _STEP).write_text(str(step))
        if best.exists():
            await anyio.to_thread.run_sync(shutil.rmtree, best)
        await anyio.to_thread.run_sync(part.rename, best)

    async def _checkpoint(self, done: int, figures: Mapping[str, float]) -> None:
        """Write checkpoints if they are due, and the models after the last step."""
        config = self._config
        last = done == config.steps
        if last:
            for name, folder in self._folders.items():
                await anyio.to_thread.run_sync(self._policies[name].export, folder / "model")
        if not last and done % config.checkpoint_every:
            return
        saved: dict[str, Path] = {}
        for name, folder in self._folders.items():
            saved[name] = folder / "checkpoints" / version_of(done)
            await anyio.to_thread.run_sync(self._policies[name].save, saved[name], done)
        await self._state.add(saved, figures, config.keep_checkpoints)


def is_better(metrics: Metrics, best: Path) -> bool:
    """Return whether the last step has a higher rank than the model that is kept in a folder.

    A kept model whose step is not among the earlier ones was made before the run was resumed, or by
    another run.
    """
    ranks = dict(metrics.column("val_rank"))
    step, kept = metrics.steps[-1]["step"], _step_in(best)
    return step in ranks and (kept == step or ranks[step] > ranks.get(kept, -math.inf))


def _step_in(best: Path) -> int:
    """Return the number of the step that made a kept model; -1 if none is kept."""
    mark = best / _STEP
    text = mark.read_text() if mark.is_file() else ""
    return int(text) if text.isdecimal() else -1


def describe_best(metrics: Metrics, folder: Path, steps: int) -> str:
    """Return which model was the best on the validation tasks, and what that proves.

    Args:
        metrics: Metrics of all steps.
        folder: Folder of the policy.
        steps: Number of steps.

    Returns:
        An empty text if there were fewer than two validations.
    """
    validated = metrics.column("val_reward")
    if len(validated) < 2:
        return ""
    ranks = dict(metrics.column("val_rank"))
    step, score = max(validated, key=lambda point: ranks.get(point[0], point[1]))
    told = f"validation chose among {len(validated)} models, so its best score is too high"
    if step + 1 == steps:
        return f"{told}; the last model is the best: {score:.3f}"
    mark = folder / BEST / _STEP
    # A run that was killed and resumed may have kept a model of a step that it then repeated.
    kept = mark.is_file() and mark.read_text() == str(step)
    where = f" is in {folder / BEST}" if kept else " is not kept"
    return (
        f"{told}; the best, {score:.3f} at step {step},{where}, and the last scores "
        f"{validated[-1][1]:.3f}: measure both on tasks that the run did not use"
    )


def _finite(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are finite numbers; stores and listeners take no others."""
    return {k: v for k, v in row.items() if isinstance(v, (int, float)) and math.isfinite(v)}


def to_rows(selected: Step, config: GRPOConfig) -> list[Row]:
    """Return the rows of a step as tensors, with the advantages of their rollouts."""
    import torch

    from agl_algo_grpo.batches import Row

    return [
        Row(
            token_ids=torch.tensor(row.token_ids),
            mask=torch.tensor(row.mask, dtype=torch.bool),
            logprobs=torch.tensor(row.logprobs),
            advantages=advantages,
            rollout=number,
            staleness=staleness(row, selected.number),
        )
        for number, (sample, of_rows) in enumerate(
            zip(selected.samples, _advantages(selected, config), strict=True)
        )
        for row, advantages in zip(sample.rows, of_rows, strict=True)
    ]


def _advantages(selected: Step, config: GRPOConfig) -> list[list[Tensor]]:
    """Return the advantages of each token, by sample and row."""
    import torch

    from agl_algo_grpo.grpo import group_advantages

    if config.credit.type != "group":
        return [
            [torch.from_numpy(row).float() for row in of_rows]
            for group in selected.groups
            for of_rows in credit.token_advantages(group, config)
        ]
    samples = selected.samples
    groups = [group.index for group in selected.groups for _ in group.samples]
    advantages = group_advantages(
        torch.tensor([sample.reward for sample in samples], dtype=torch.float64),
        torch.tensor(groups),
        config.advantage,
    ).tolist()
    return [
        [torch.full((len(row.token_ids),), advantage) for row in sample.rows]
        for sample, advantage in zip(samples, advantages, strict=True)
    ]


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
