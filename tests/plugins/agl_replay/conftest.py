"""Recorded rollouts whose model server is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.types import Rollout
from agl_scripted import Reply, Script, ScriptedModels
from agl_store_memory import InMemoryLightningStore

from .recorded_rollouts import run_agent


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def record(store: InMemoryLightningStore) -> Callable[..., Awaitable[Rollout]]:
    """Return a function that records a rollout; its model server is gone when it returns."""

    async def run(agent: LitAgent[Any], script: Script | None = None, **options: Any) -> Rollout:
        with ScriptedModels(script or [Reply("Hello there my friend")]) as models:
            return await run_agent(agent, store, models, **options)

    return run
