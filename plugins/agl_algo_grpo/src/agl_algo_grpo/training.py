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
from typing import TYPE_CHECKING, Any

import anyio

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.metrics import Metrics, draw_curve
from agl_algo_grpo.rollouts import Rollouts
from agl_algo_grpo.samples import Reason, Step, staleness, version_of
from agl_algo_grpo.serving import Serving
from agl_core.adapter import TraceToTrajectory
from agl_core.algorithm import Run, batch_iter_over_dataset, show_progress
from agl_core.errors import ConfigError
from agl_core.types import Dataset

if TYPE_CHECKING:
    from agl_algo_grpo.algorithm import GRPO
    from agl_algo_grpo.batches import Row
    from agl_algo_grpo.policy import Policy

__all__ = ["TrainingRun"]

logger = logging.getLogger(__name__)


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
        self._adapter = adapter
        self._train = train
        self._val = val if val is not None and len(val) else None
        self._run: Run = algorithm.get_run()
        self.folder = Path(config.output_dir or Path("agl-runs", self._run.name or "grpo"))

    async def run(self) -> None:
        config = self._config
        base = await anyio.to_thread.run_sync(_find_model, config.model)
        policy, first = await anyio.to_thread.run_sync(self._prepare, base)
        metrics = self._algorithm.metrics = Metrics(self.folder, first)
        serving = Serving(self._algorithm.server(base), self._algorithm.proxy(), config)
        rollouts = Rollouts(
            self._algorithm.get_store(), serving, self._adapter, self._train, config, self._run
        )
        batches = batch_iter_over_dataset(self._train, config.tasks_per_step, seed=config.seed)
        plan = enumerate(itertools.islice(batches, first, config.steps), start=first)
        async with serving.running():
            await self._publish(serving, policy, first)
            with show_progress("GRPO", config.steps) as progress:
                progress.update(first)
                steps = self._steps(plan, rollouts, serving, policy)
                async with serving.guarded(), aclosing(steps) as rows:
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
        self,
        plan: Iterator[tuple[int, Sequence[Any]]],
        rollouts: Rollouts,
        serving: Serving,
        policy: Policy,
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
                collections.append(asyncio.create_task(rollouts.collect(*item)))

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
                if self._val is not None and self._is_validated(selected.number + 1):
                    row["val_reward"] = await rollouts.validate(selected.number + 1, self._val)
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
        return last or (every > 0 and done % every == 0)

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
