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

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.metrics import Metrics
from agl_algo_grpo.serving import Backend, build_server
from agl_algo_grpo.training import TrainingRun, steps_of
from agl_core.algorithm import Algorithm, Run, RunContext
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.llm_server import LLMServer
from agl_core.plugins import configured_by, missing_package
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

    Several policies learn from one set of rollouts, each on its own calls::

        GRPO({"solver": "path/of/model", "critic": {"model": "path", "reward": "critique"}})

    Agents find each under its name among their resources. All share the rollout's reward, or each
    has its own number of it (``reward``). Each has a server, or an adapter on a shared one (with
    ``lora``, from one model), and a folder below ``output_dir``.

    Options: :class:`GRPOConfig`.

    Attributes:
        config: The options.
        policies: Metrics of the last run, by the policy's name.
        output_dir: Folder of the last run.
    """

    @configured_by(GRPOConfig)
    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self.policies: dict[str, Metrics] = {}
        self.output_dir: Path | None = None

    @property
    def metrics(self) -> Metrics | None:
        """Metrics of the last run, of its first policy; None before it."""
        return next(iter(self.policies.values()), None)

    def has_more_to_do(self, run: Run) -> bool:
        return self.config.steps > steps_of(run.state)

    def set_context(self, context: RunContext) -> None:
        super().set_context(context)
        if context.llm_server is not None:  # it starts before run()
            _expect_adapters(context.llm_server, self.config.policies().values())

    async def check(self) -> None:
        policies = self._check_libraries()
        models = {name: Path(str(config.model)) for name, config in policies.items()}
        for backend in self.backends(models):
            await backend.server.check()
            for name in backend.policies:
                # A model of the hub that was not downloaded yet is checked by the run.
                if policies[name].lora is None and (models[name] / "config.json").is_file():
                    backend.server.check_updates(models[name])

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
        self._check_libraries()
        adapter = self.get_adapter()
        if not isinstance(adapter, TraceToTrajectory):
            raise ConfigError(
                'GRPO reads trajectories: use adapter="trajectory", '
                f"not a {type(adapter).__qualname__}",
                path="adapter",
            )
        training = TrainingRun(self, adapter, train_dataset, val_dataset)
        self.policies, self.output_dir = {}, training.folder
        await training.run()

    def backends(self, folders: Mapping[str, Path]) -> list[Backend]:
        """Return the servers of the policies: the trainer's, or those of the option ``server``.

        LoRA adapters of one model share a server; every other policy has its own.

        Args:
            folders: Folder of the model that each policy starts from, by the policy's name.

        Raises:
            ConfigError: Both are set, the trainer's server would have to serve several models, or
                the option is invalid.
        """
        policies = self.config.policies()
        shared: dict[str, list[str]] = {}
        for name, config in policies.items():
            alike = repr((folders[name], config.server)) if config.lora else name
            shared.setdefault(alike, []).append(name)
        server = self.get_llm_server()
        if server is None:
            return [
                Backend(self._new_server(folders[names[0]], names), names)
                for names in shared.values()
            ]
        if any(config.server is not None for config in policies.values()):
            raise ConfigError("the trainer already has an llm_server", path="algorithm.server")
        if len(shared) > 1:
            raise ConfigError(
                "it cannot serve all policies: leave it out, so that each has a server of its own, "
                "or train LoRA adapters of one model",
                path="llm_server",
            )
        return [Backend(server, list(policies))]

    def _check_libraries(self) -> dict[str, GRPOConfig]:
        """Check that the heavy packages are installed; return the policies' options.

        Raises:
            MissingDependencyError: One of them is not.
        """
        policies = self.config.policies()
        packages = ["torch", "transformers"]
        if any(config.lora is not None for config in policies.values()):
            packages.append("peft")
        for package in packages:
            if find_spec(package) is None:
                raise MissingDependencyError("algorithm.grpo", pip=package)
        if self.config.credit.type == "forked" and find_spec("agl_replay") is None:
            raise missing_package("algorithm.grpo", "agl-replay")
        return policies

    def _new_server(self, folder: Path, names: Sequence[str]) -> LLMServer:
        policies = self.config.policies()
        # Servers of several policies need different model names.
        model = None if self.config.is_single or len(names) > 1 else names[0]
        server = build_server(policies[names[0]].server, folder, model)
        _expect_adapters(server, [policies[name] for name in names])
        return server

    def proxy(self) -> LLMProxy:
        """Return the trainer's proxy, or a new one for this run."""
        proxy = self.get_llm_proxy()
        if proxy is None:
            from agl_proxy_direct import DirectProxy

            # With agents in this process, a proxy in a thread would share their interpreter lock:
            # 1.4 to 1.8 times the time of the OpenAI client alone becomes 1.3 to 1.5 times with 64
            # rollouts at a time (bench_rollouts.py). On Windows it can only be a thread.
            strategy = self.context.strategy
            own = strategy is not None and strategy.in_process and os.name == "posix"
            return DirectProxy(store=self.get_store(), launch_mode="mp" if own else "thread")
        if not isinstance(proxy, LLMProxy):
            raise ConfigError(f"{type(proxy).__qualname__} is not an LLMProxy", path="proxy")
        return proxy


def _expect_adapters(server: LLMServer, policies: Iterable[GRPOConfig]) -> None:
    """Prepare a server for the LoRA adapters of the policies that have one.

    Raises:
        LLMServerError: The server's options exclude them.
    """
    ranks = [config.lora.r for config in policies if config.lora is not None]
    if ranks:
        server.expect_adapters(rank=max(ranks), count=len(ranks))
