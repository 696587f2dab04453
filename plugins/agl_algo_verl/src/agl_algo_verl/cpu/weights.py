"""Sends weights from the trainer to servers of their own, through Ray's object store.

What NCCL does between GPUs. verl finds it by ``rollout.checkpoint_engine.custom_backend_module``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import agl_algo_verl.cpu.rollout  # noqa: F401 -- registers the server that the weights go to

__all__ = ["BACKEND", "ObjectStoreEngine"]

BACKEND = "agl_object_store"


class Mailbox:
    """An actor that holds one set of weights, for those who wait for it."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._weights: dict[str, Any] = {}

    async def put(self, weights: dict[str, Any]) -> None:
        """Leave weights, as arrays by name."""
        self._weights = weights
        self._arrived.set()

    async def get(self) -> dict[str, Any]:
        """Wait for weights, and return them."""
        await self._arrived.wait()
        return self._weights


@CheckpointEngineRegistry.register(BACKEND)
class ObjectStoreEngine(CheckpointEngine):
    """One end of a transfer; there is a new mailbox for each.

    Args:
        bucket_size: Not used: everything is sent at once.
        is_master: Whether this is the worker that sends.
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
        # Every worker takes part in putting the shards together; one sends the whole.
        named = {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in weights}
        if self._sends:
            await self._mailbox.put.remote(named)

    async def receive_weights(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        weights = await self._mailbox.get.remote()
        for name, array in weights.items():
            yield name, torch.tensor(array)
