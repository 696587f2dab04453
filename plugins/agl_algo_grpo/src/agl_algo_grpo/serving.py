"""The model as agents reach it: a server that is kept alive behind a proxy, and its weights.

What may go wrong in the middle of a step, the server's death, a hang, goes wrong here and is mended
here: the server is started again with the weights it had, while the proxy lets calls wait.
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

_LOOK_SECONDS: Final = 0.5
"""Between two looks whether the server lives: its contract has no event for a death."""
_DRAIN_SECONDS: Final = 60.0


def build_server(spec: Any, folder: Path) -> LLMServer:
    """Return the LLM server that a configuration describes, for the model in a folder.

    Raises:
        ConfigError: The options are wrong.
        PluginError: There is no such server.
    """
    if spec is None or isinstance(spec, str):
        spec = {"type": spec or "hf"}
    if isinstance(spec, dict):
        spec = {"path": str(folder), **spec}
    return build_component("llm_server", spec, default="hf", path="algorithm.server")


class Serving:
    """A server, the proxy in front of it, and the weights that both are at.

    Args:
        server: Started here unless it runs already; then it is left running.
        proxy: Its backends of the server's model are replaced; others stay.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.

    Attributes:
        restarts: How often the server was started again, in all.
    """

    def __init__(self, server: LLMServer, proxy: LLMProxy, config: GRPOConfig) -> None:
        self._server = server
        self._proxy = proxy
        self._config = config
        self._others = list(proxy.get_model_list())
        self._weights: Path | None = None
        self._version = "step-0"
        self._mending = anyio.Lock()
        self.restarts = 0
        self._restarts_before = 0

    @property
    def version(self) -> str:
        """Version of the weights that answer."""
        return self._version

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Serving]:
        """Serve while the context is open; afterwards everything started here has ended."""
        server_ran, proxy_ran = self._server.is_running(), self._proxy.is_running()
        try:
            if not server_ran:
                await self._server.start()
            self._announce()
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
        """Return what agents get: the model behind the proxy."""
        sampling: dict[str, Any] = {"temperature": self._config.temperature}
        if self._config.max_tokens is not None:
            sampling["max_tokens"] = self._config.max_tokens
        model = self._proxy.as_resource(model=self._server.model, sampling_parameters=sampling)
        return {self._config.resource: model}

    async def publish(self, weights: Path | None, version: str) -> float:
        """Answer with other weights from now on; no call sees both.

        Args:
            weights: Folder of them; None are those that the server starts with.
            version: What spans say of them.

        Returns:
            How many seconds it took, the wait for calls in flight included.

        Raises:
            LLMServerError: The server refuses them, or dies too often.
        """
        began = time.monotonic()
        self._weights, self._version = weights, version
        await self._proxy.drain(_DRAIN_SECONDS, abort=True)
        try:
            await self._update()
        except LLMServerError as error:
            if self._server.is_running():
                raise
            await self._restart(f"died while it took weights: {error}")
        finally:
            await self._proxy.resume()
        return time.monotonic() - began

    @asynccontextmanager
    async def guarded(self) -> AsyncGenerator[None]:
        """Keep the server alive while the context is open.

        Raises:
            LLMServerError: It had to be started again too often.
        """
        failure: LLMServerError | None = None
        self._restarts_before = self.restarts

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
            except LLMServerError as error:  # as itself, not in an exception group
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def ensure(self) -> None:
        """Start the server again if it died; what failed may have failed before that was seen.

        Raises:
            LLMServerError: It had to be started again too often.
        """
        async with self._mending:
            if not self._server.is_running():
                await self._mend("died")

    async def _guard(self) -> None:
        asked = time.monotonic()
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            await self.ensure()
            if time.monotonic() - asked >= self._config.check_interval:
                why = await self._ask()
                asked = time.monotonic()
                if why:
                    async with self._mending:
                        await self._mend(why)

    async def _mend(self, why: str) -> None:
        if self.restarts - self._restarts_before >= self._config.max_server_restarts:
            most = self._config.max_server_restarts
            raise LLMServerError(f"the server {why}, after {most} restarts in one step")
        await self._restart(why)

    async def _ask(self) -> str:
        """Ask the server for one token; return what is wrong, or nothing."""
        body = {"model": self._server.model, "prompt": "?", "max_tokens": 1}
        timeout = aiohttp.ClientTimeout(total=self._config.hang_timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._server.base_url}/completions", json=body) as reply,
            ):
                await reply.read()
        except TimeoutError:
            return f"hangs: no answer in {self._config.hang_timeout:g} s"
        except (aiohttp.ClientError, LLMServerError) as error:
            return f"does not answer: {error!r}"
        # Whatever it says of this prompt, it lives, unless it says itself that it is broken.
        return f"answers {reply.status}" if reply.status >= 500 else ""

    async def _restart(self, why: str) -> None:
        self.restarts += 1
        logger.warning("the LLM server %s; it is started again", why)
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
        self._announce()

    def _announce(self) -> None:
        """Point the proxy at the server as it is now."""
        ours = self._server.model_list()
        for entry in ours:
            # What an agent does not say itself is said for it.
            parameters = {"temperature": self._config.temperature}
            if self._config.max_tokens is not None:
                parameters["max_tokens"] = self._config.max_tokens
            entry["litellm_params"] = {**parameters, **entry["litellm_params"]}
        names = {entry["model_name"] for entry in ours}
        others = [entry for entry in self._others if entry["model_name"] not in names]
        self._proxy.update_model_list([*ours, *others])
        for name in names:
            self._proxy.set_model_version(self._version, name)
