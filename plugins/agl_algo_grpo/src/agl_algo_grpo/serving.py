"""The served model: an LLM server behind a proxy, its weights, and its restarts.

If the server dies or hangs during a step, it is restarted here with the weights it had. Calls wait
in the proxy meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio

from agl_algo_grpo.config import GRPOConfig
from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_core.plugins import build_component
from agl_core.proxy import LLMProxy
from agl_core.types import NamedResources

__all__ = ["Serving", "build_server"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.5
"""Interval of the checks for a dead server; the contract of LLM servers has no event for it."""
_DRAIN_SECONDS: Final = 60.0
"""Time for calls in flight to finish before new weights are loaded."""


def build_server(spec: Any, folder: Path) -> LLMServer:
    """Return the LLM server that the option ``server`` describes, for the model in a folder.

    Raises:
        ConfigError: The options are invalid.
        PluginError: The server is not installed.
    """
    if spec is None or isinstance(spec, str):
        spec = {"type": spec or "hf"}
    if isinstance(spec, dict):
        spec = {"path": str(folder), **spec}
    return build_component("llm_server", spec, default="hf", path="algorithm.server")


class Serving:
    """An LLM server, the proxy in front of it, and their current weights.

    Args:
        server: The server. It is started and stopped here unless it is already running.
        proxy: The proxy. Its backends for the server's model are replaced; others stay. It is
            started and stopped here unless it is already running.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.

    Attributes:
        restarts: Number of restarts of the server so far.
    """

    def __init__(self, server: LLMServer, proxy: LLMProxy, config: GRPOConfig) -> None:
        self._server = server
        self._proxy = proxy
        self._config = config
        self._other_models = list(proxy.get_model_list())
        self._weights: Path | None = None
        self._version = "step-0"
        self._restarting = anyio.Lock()
        self.restarts = 0
        self._restarts_before = 0

    @property
    def version(self) -> str:
        """Version of the served weights."""
        return self._version

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Serving]:
        """Run server and proxy while the context is open; stop what was started here."""
        server_ran, proxy_ran = self._server.is_running(), self._proxy.is_running()
        try:
            if not server_ran:
                await self._server.start()
            self._update_proxy()
            if not proxy_ran:
                await self._proxy.start()
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                if not proxy_ran and self._proxy.is_running():
                    await self._proxy.stop()
                if not server_ran:
                    await self._server.stop()

    def as_resources(self) -> NamedResources:
        """Return the resources for agents: the model behind the proxy."""
        sampling: dict[str, Any] = {"temperature": self._config.temperature}
        if self._config.max_tokens is not None:
            sampling["max_tokens"] = self._config.max_tokens
        model = self._proxy.as_resource(model=self._server.model, sampling_parameters=sampling)
        return {self._config.resource: model}

    async def publish(self, weights: Path | None, version: str) -> float:
        """Serve other weights; no call is answered by both.

        Args:
            weights: Folder of the weights; None is the model that the server starts with.
            version: Version that spans record.

        Returns:
            Seconds taken, including the wait for calls in flight.

        Raises:
            LLMServerError: The server refuses the weights, or dies too often.
        """
        began = time.monotonic()
        await self._proxy.drain(_DRAIN_SECONDS, abort=True)
        async with self._restarting:
            self._weights, self._version = weights, version
            try:
                await self._update()
            except LLMServerError as error:
                if self._server.is_running():
                    raise
                await self._restart(f"died while it loaded weights: {error}")
            finally:
                await self._proxy.resume()
        return time.monotonic() - began

    @asynccontextmanager
    async def guarded(self) -> AsyncGenerator[None]:
        """Restart the server whenever it dies or hangs while the context is open.

        Raises:
            LLMServerError: The limit of restarts is reached.
        """
        failure: Exception | None = None

        async def guard(scope: anyio.CancelScope) -> None:
            nonlocal failure
            try:
                await self._guard()
            except LLMServerError as error:
                failure = error
                scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(guard, group.cancel_scope)
            try:
                yield
            except Exception as error:  # a task group would wrap it in an exception group
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def reset_limit(self) -> None:
        """Start a new step: earlier restarts do not count against its limit."""
        self._restarts_before = self.restarts

    async def ensure(self) -> None:
        """Restart the server if it is dead.

        The caller checks after failed rollouts, which may fail before the next poll sees the death.

        Raises:
            LLMServerError: The limit of restarts is reached.
        """
        async with self._restarting:
            if not self._server.is_running():
                await self._restart_within_limit("died")

    async def _guard(self) -> None:
        checked = time.monotonic()
        while True:
            await anyio.sleep(_POLL_SECONDS)
            await self.ensure()
            if time.monotonic() - checked >= self._config.check_interval:
                problem = await self._check_health()
                checked = time.monotonic()
                if problem:
                    async with self._restarting:
                        await self._restart_within_limit(problem)

    async def _restart_within_limit(self, why: str) -> None:
        limit = self._config.max_server_restarts
        if self.restarts - self._restarts_before >= limit:
            raise LLMServerError(f"the server {why}, after {limit} restarts in one step")
        await self._restart(why)

    async def _check_health(self) -> str:
        """Request one token; return the problem in words, or an empty string."""
        body = {"model": self._server.model, "prompt": "?", "max_tokens": 1}
        timeout = aiohttp.ClientTimeout(total=self._config.hang_timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._server.base_url}/completions", json=body) as reply,
            ):
                await reply.read()
        except TimeoutError:
            return f"hangs: no reply within {self._config.hang_timeout:g} s"
        except (aiohttp.ClientError, LLMServerError) as error:
            return f"does not reply: {error!r}"
        # A refusal of this prompt (4xx) shows a healthy server.
        return f"replies with status {reply.status}" if reply.status >= 500 else ""

    async def _restart(self, why: str) -> None:
        self.restarts += 1
        logger.warning("the LLM server %s; restarting it", why)
        await self._proxy.pause()
        try:
            await self._server.stop()
            await self._server.start()
            await self._update()
        finally:
            await self._proxy.resume()

    async def _update(self) -> None:
        if self._weights is not None:
            await self._server.update_weights(self._weights, version=self._version)
        self._update_proxy()

    def _update_proxy(self) -> None:
        """Point the proxy at the server's current address and version."""
        entries = self._server.model_list()
        for entry in entries:
            # Defaults for calls in which the agent sets no sampling parameters.
            parameters = {"temperature": self._config.temperature}
            if self._config.max_tokens is not None:
                parameters["max_tokens"] = self._config.max_tokens
            entry["litellm_params"] = {**parameters, **entry["litellm_params"]}
        names = {entry["model_name"] for entry in entries}
        others = [entry for entry in self._other_models if entry["model_name"] not in names]
        self._proxy.update_model_list([*entries, *others])
        for name in names:
            self._proxy.set_model_version(self._version, name)
