"""Restarts of servers that die while they are restarted; the other tests have real servers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from agl_algo_grpo import GRPO, GRPOConfig
from agl_algo_grpo.serving import Backend, Serving
from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_proxy_direct import DirectProxy
from agl_store_memory import InMemoryLightningStore


class Fragile(LLMServer):
    """A server without a process, which dies during some of its starts."""

    def __init__(self, deaths: Collection[int]) -> None:
        self.deaths = deaths
        self.starts = 0
        self.alive = False
        self.weights: list[Path] = []

    @property
    def model(self) -> str:
        return "m"

    @property
    def model_version(self) -> str:
        return "0"

    @property
    def base_url(self) -> str:
        return "http://127.0.0.1:1/v1"

    async def start(self) -> None:
        self.starts += 1
        if self.starts in self.deaths:
            raise LLMServerError("out of memory")
        self.alive = True

    async def stop(self) -> None:
        self.alive = False

    def is_running(self) -> bool:
        return self.alive

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        self.weights.append(Path(path))


def serving_of(server: Fragile, **options: Any) -> Serving:
    config = GRPOConfig(model="x", max_server_restarts=2, **options)
    proxy = DirectProxy(store=InMemoryLightningStore(), launch_mode="asyncio")
    return Serving([Backend(server, ["main_llm"])], proxy, config)


async def test_a_server_that_dies_while_it_is_restarted_is_restarted_again():
    server = Fragile(deaths={2})
    serving = serving_of(server)
    async with serving.running():
        await serving.publish({"main_llm": Path("w")}, "step-1")
        server.alive = False
        await serving.ensure()
        assert server.alive
        assert (server.starts, serving.restarts) == (3, 2)
        assert server.weights == [Path("w")] * 2


async def test_its_restarts_are_limited():
    server = Fragile(deaths={2, 3, 4})
    serving = serving_of(server)
    async with serving.running():
        server.alive = False
        with pytest.raises(LLMServerError, match="restarted: out of memory, after 2 restarts"):
            await serving.ensure()
        assert server.starts == 3


class Tied(Fragile):
    """A server that takes no whole model."""

    checked = 0

    async def check(self) -> None:
        self.checked += 1

    def check_updates(self, path: str | Path) -> None:
        raise LLMServerError(f"{path} ties its embeddings")


async def test_a_check_refuses_a_model_that_the_server_will_not_take(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    server = Tied(())
    with pytest.raises(LLMServerError, match="ties its embeddings"):
        await GRPO(model=str(tmp_path), server=server).check()
    await GRPO(model="not/here/yet", server=server).check()
    assert (server.checked, server.starts) == (2, 0)
