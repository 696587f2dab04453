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

from pathlib import Path
from typing import Any

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.metrics import Metrics
from agl_algo_grpo.serving import build_server
from agl_algo_grpo.training import TrainingRun
from agl_core.adapter import TraceToTrajectory
from agl_core.algorithm import Algorithm
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.llm_server import LLMServer
from agl_core.plugins import configured_by
from agl_core.proxy import LLMProxy
from agl_core.types import Dataset

__all__ = ["GRPO"]


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
        training = TrainingRun(self, adapter, train_dataset, val_dataset)
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


def _check_libraries(*, lora: bool) -> None:
    """Check before the run starts that the heavy packages are installed.

    Raises:
        MissingDependencyError: One of them is not.
    """
    from importlib.util import find_spec

    for package in ("torch", "transformers", *(("peft",) if lora else ())):
        if find_spec(package) is None:
            raise MissingDependencyError("algorithm.grpo", pip=package)
