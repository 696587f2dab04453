"""Sends weights from the trainer to servers on separate devices, through Ray's object store.

It replaces NCCL, which needs GPUs. verl loads it by
``rollout.checkpoint_engine.custom_backend_module``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import agl_verl_cpu.rollout  # noqa: F401 -- registers the server that the weights go to

__all__ = ["BACKEND", "ObjectStoreEngine"]

BACKEND = "agl_object_store"


class Mailbox:
    """A Ray actor that passes one set of weights from the sender to the receivers."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._weights: dict[str, Any] = {}

    async def put(self, weights: dict[str, Any]) -> None:
        """Store the weights, as arrays by name."""
        self._weights = weights
        self._arrived.set()

    async def get(self) -> dict[str, Any]:
        """Wait for the weights and return them."""
        await self._arrived.wait()
        return self._weights


@CheckpointEngineRegistry.register(BACKEND)
class ObjectStoreEngine(CheckpointEngine):
    """One end of a transfer; each transfer has a mailbox of its own.

    Args:
        bucket_size: Unused, because all weights are sent at once.
        is_master: Whether this worker sends the weights.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._sends = is_master
        self._mailbox: Any = None

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        name = f"agl_weights_{uuid.uuid4().hex}"
        return {"mailbox": [name] * actor_wg_world_size}, {"mailbox": [name] * rollout_world_size}

    def init_process_group(self, mailbox: str) -> None:  # pyright: ignore
        self._mailbox = (
            ray.remote(Mailbox).options(name=mailbox, get_if_exists=True, num_cpus=0).remote()
        )

    def finalize(self) -> None:
        self._mailbox = None

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        # Iterating gathers the shards, so every worker must do it; one worker sends the result.
        named = {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in weights}
        if self._sends:
            await self._mailbox.put.remote(named)

    async def receive_weights(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        weights = await self._mailbox.get.remote()
        for name, array in weights.items():
            yield name, torch.tensor(array)
