"""A rollout server for verl without a GPU: transformers behind verl's interface of a replica.

verl starts one actor per replica, the trainer's workers send it their weights after each step, and
agents reach it over HTTP (:mod:`~agl_verl_cpu.serving`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

__all__ = ["ROLLOUT_NAME", "TransformersReplica", "TransformersServer", "TransformersServerAdapter"]

ROLLOUT_NAME = "agl_transformers"
"""Value of ``actor_rollout_ref.rollout.name`` on a CPU."""


def _actor_name(replica_rank: int) -> str:
    return f"agl_rollout_server_{replica_rank}"


class TransformersServer:
    """The Ray actor of one replica.

    Args:
        path: Folder of the model.
        seed: Seed of the sampling.
    """

    def __init__(self, path: str, seed: int) -> None:
        from agl_verl_cpu.generation import Generator

        torch.set_num_threads(1)
        self.generator = Generator(path, seed)
        self.path = path
        self.global_steps = 0

    async def launch(self) -> str:
        """Start serving; return ``host:port``."""
        from verl.workers.rollout.utils import run_uvicorn

        from agl_verl_cpu.serving import build_app

        address = ray.util.get_node_ip_address()
        app = build_app(self.generator, self.path)
        port, self._serving = await run_uvicorn(app, None, address)
        return f"{address}:{port}"

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Answer verl's own clients; agents call the HTTP app through the proxy."""
        limit = sampling_params.get("max_tokens", self.generator.max_length)
        temperature = sampling_params.get("temperature", 1.0)
        tokens = await asyncio.to_thread(
            lambda: list(self.generator.stream(prompt_ids, limit, temperature))
        )
        return TokenOutput(
            token_ids=[token.id for token in tokens],
            log_probs=[token.logprob for token in tokens],
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def update_weights(self, weights: dict[str, Any], global_steps: int | None) -> None:
        """Load the trainer's weights between two answers."""
        # torch.tensor copies; torch warns about arrays that are read-only, as Ray's are.
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        await asyncio.to_thread(self.generator.load, tensors)
        self.global_steps = global_steps or 0

    async def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no device memory to release and nothing to profile."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = nothing


class TransformersReplica(RolloutReplica):
    """Starts the actor of a replica."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(TransformersServer)
            .options(name=_actor_name(self.replica_rank), num_cpus=1)
            .remote(self.model_config.path, self.config.seed + self.replica_rank)
        )
        self._server_address = await server.launch.remote()
        self._server_handle = server
        self.servers = [server]


class TransformersServerAdapter(BaseRollout):
    """Sends a worker's weights to the server of its replica."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ.get("RANK", "0"))
        self.replica_rank = rank if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: nothing was released."""

    async def release(self) -> None:
        """Do nothing: there is no device memory."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        if hasattr(weights, "__aiter__"):
            named = {name: _array(tensor) async for name, tensor in weights}  # pyright: ignore
        else:
            named = {name: _array(tensor) for name, tensor in weights}
        server = ray.get_actor(_actor_name(self.replica_rank))
        await server.update_weights.remote(named, global_steps)


def _array(tensor: torch.Tensor) -> Any:
    # Ray transfers NumPy arrays without copies, but pickles torch tensors.
    return tensor.detach().float().cpu().numpy().copy()


RolloutReplicaRegistry.register(ROLLOUT_NAME, lambda: TransformersReplica)
_ROLLOUT_REGISTRY[ROLLOUT_NAME, "async"] = f"{__name__}.TransformersServerAdapter"
