"""A served memory store, and plain HTTP to it: no client of ours between test and server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest_asyncio

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import StoreApp, StoreAppOptions
from agl_store_memory import InMemoryLightningStore

PREFIX = "/v1/agl"


@dataclass
class Answer:
    status: int
    body: bytes
    headers: Any

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A store, the app around it, and a way to send requests."""

    def __init__(self, options: StoreAppOptions | None = None, store: Any = None) -> None:
        self.store = store or InMemoryLightningStore()
        self.app = StoreApp(self.store, options)
        self.launcher = PythonServerLauncher(self.app, PythonServerLauncherArgs())
        self.session: aiohttp.ClientSession

    async def start(self) -> Served:
        await self.launcher.start()
        self.session = aiohttp.ClientSession()
        return self

    async def stop(self) -> None:
        await self.session.close()
        await self.launcher.stop()

    @property
    def url(self) -> str:
        return self.launcher.endpoint

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(method, self.url + path, **options) as response:
            return Answer(response.status, await response.read(), response.headers)

    async def get(self, path: str, **params: Any) -> Answer:
        return await self.send("GET", PREFIX + path, params=params)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        if body is not None:
            options["json"] = body
        return await self.send("POST", PREFIX + path, **options)

    async def claim(self, **fields: Any) -> tuple[str, str]:
        await self.store.enqueue_rollout(1)
        claimed = await self.store.dequeue_rollout(**fields)
        assert claimed is not None
        return claimed.rollout_id, claimed.attempt.attempt_id


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    server = await Served().start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Any]:
    """Start servers with options; all are stopped."""
    started: list[Served] = []

    async def start(store: Any = None, **options: Any) -> Served:
        server = await Served(StoreAppOptions(**options), store).start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()
