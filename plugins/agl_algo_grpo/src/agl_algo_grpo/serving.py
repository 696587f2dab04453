"""The served policies: LLM servers behind a proxy, their weights, and their restarts.

If a server dies or hangs during a step, it is restarted here with the weights it had. Calls wait in
the proxy meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.samples import Learner
from agl_core.errors import ConfigError, LLMServerError
from agl_core.llm_server import LLMServer
from agl_core.plugins import build_component
from agl_core.proxy import LLMProxy
from agl_core.types import NamedResources

__all__ = ["Backend", "Serving", "build_server"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.5
"""Interval of the checks for a dead server; the contract of LLM servers has no event for it."""
_NEUTRAL_SAMPLING: Final[Mapping[str, Any]] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Sent with each call that does not say otherwise: a server takes what a request leaves out from
the model's ``generation_config.json``, and no span records that."""


def build_server(spec: Any, folder: Path, model: str | None = None) -> LLMServer:
    """Return the LLM server that the option ``server`` describes.

    Args:
        spec: The option.
        folder: Folder of the model.
        model: Name that calls ask for; None leaves it to the server.

    Raises:
        ConfigError: The options are invalid.
        PluginError: The server is not installed.
    """
    if spec is None or isinstance(spec, str):
        spec = {"type": spec or "hf"}
    if isinstance(spec, dict):
        defaults = {"path": str(folder), **({} if model is None else {"model": model})}
        spec = defaults | spec
    return build_component("llm_server", spec, default="hf", path="algorithm.server")


@dataclass(slots=True)
class Backend:
    """An LLM server and the policies that it serves.

    Attributes:
        server: The server. It is started and stopped by :class:`Serving` unless it already runs.
        policies: Names of the policies. Several are LoRA adapters beside each other, each under the
            policy's name; a single one is the server's model.
        entries: The server as the proxy's backend, since its last start or update.
    """

    server: LLMServer
    policies: Sequence[str]
    entries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def model_of(self, policy: str) -> str:
        """Return the name that calls ask for."""
        return policy if len(self.policies) > 1 else self.server.model

    async def load(self, weights: Mapping[str, Path], version: str) -> None:
        """Serve other weights of some policies.

        Raises:
            LLMServerError: The server refuses the weights, or has died.
        """
        for policy in self.policies:
            if policy not in weights:
                continue
            if len(self.policies) > 1:
                await self.server.load_adapter(policy, weights[policy])
            else:
                await self.server.update_weights(weights[policy], version=version)
        self.entries = self.server.model_list()


class Serving:
    """LLM servers, the proxy in front of them, and the current weights of the policies.

    Args:
        backends: The servers; each policy is in one of them.
        proxy: The proxy. Its backends for the policies' models are replaced; others stay. It is
            started and stopped here unless it is already running.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.

    Attributes:
        learners: The policies by name, which is the name of their resource.
        restarts: Number of restarts of servers so far.

    Raises:
        ConfigError: Two policies have the same model name.
    """

    def __init__(self, backends: Sequence[Backend], proxy: LLMProxy, config: GRPOConfig) -> None:
        self._backends = list(backends)
        self._proxy = proxy
        self._config = config
        models = {name: b.model_of(name) for b in self._backends for name in b.policies}
        self.learners = {
            name: Learner(options, models[name]) for name, options in config.policies().items()
        }
        if len(set(models.values())) < len(models):
            raise ConfigError(
                "policies have the same model name on their servers: set the servers' option model",
                path="algorithm.server",
            )
        self._other_models = list(proxy.get_model_list())
        self._weights: dict[str, Path] = {}
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
        """Run servers and proxy while the context is open; stop what was started here."""
        started = [b.server for b in self._backends if not b.server.is_running()]
        proxy_ran = self._proxy.is_running()
        try:
            for server in started:
                await server.start()
            for backend in self._backends:
                await backend.load({}, self._version)
            self._update_proxy()
            if not proxy_ran:
                await self._proxy.start()
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                stops = [server.stop for server in reversed(started)]
                if not proxy_ran and self._proxy.is_running():
                    stops.append(self._proxy.stop)
                await _call_all(reversed(stops))

    def as_resources(self) -> NamedResources:
        """Return the resources for agents: the policies' models behind the proxy."""
        return {
            name: self._proxy.as_resource(
                model=learner.model, sampling_parameters=_sampling(learner.config)
            )
            for name, learner in self.learners.items()
        }

    async def publish(self, weights: Mapping[str, Path], version: str) -> float:
        """Serve other weights; no call is answered by both.

        Args:
            weights: Folder of each policy's weights, by its name. Absent ones are those that the
                server starts with.
            version: Version that spans record.

        Returns:
            Seconds taken, including the wait for calls in flight.

        Raises:
            LLMServerError: The server refuses the weights, or dies too often.
        """
        began = time.monotonic()
        async with self._restarting:
            # With the lock: a restart resumes the proxy at its end, and calls would flow again.
            try:
                await self._proxy.drain(self._config.drain_timeout, abort=True)
                self._weights, self._version = dict(weights), version
                for backend in self._backends:
                    try:
                        await backend.load(self._weights, version)
                    except LLMServerError as error:
                        if backend.server.is_running():
                            raise
                        await self._start_again(backend, f"died while it loaded weights: {error}")
                self._update_proxy()
            finally:
                await self._proxy.resume()
        return time.monotonic() - began

    @asynccontextmanager
    async def guarded(self) -> AsyncGenerator[None]:
        """Restart servers that die or hang while the context is open.

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
        """Restart the servers that are dead.

        The caller checks after failed rollouts, which may fail before the next poll sees the death.

        Raises:
            LLMServerError: The limit of restarts is reached.
        """
        async with self._restarting:
            for backend in self._backends:
                if not backend.server.is_running():
                    await self._restart(backend, "died")

    async def _guard(self) -> None:
        checked = time.monotonic()
        while True:
            await anyio.sleep(_POLL_SECONDS)
            await self.ensure()
            if time.monotonic() - checked < self._config.check_interval:
                continue
            for backend in self._backends:
                await self._check_and_restart(backend)
            checked = time.monotonic()

    async def _check_and_restart(self, backend: Backend) -> None:
        """Restart a server that does not reply, unless it was restarted during the check."""
        restarts = self.restarts
        problem = await self._check_health(backend.server)
        if not problem:
            return
        async with self._restarting:
            if self.restarts == restarts:
                await self._restart(backend, problem)

    async def _check_health(self, server: LLMServer) -> str:
        """Request one token; return the problem in words, or an empty string."""
        body = {"model": server.model, "prompt": "?", "max_tokens": 1}
        timeout = aiohttp.ClientTimeout(total=self._config.hang_timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{server.base_url}/completions", json=body) as reply,
            ):
                await reply.read()
        except TimeoutError:
            return f"hangs: no reply within {self._config.hang_timeout:g} s"
        except (aiohttp.ClientError, LLMServerError) as error:
            return f"does not reply: {error!r}"
        # A refusal of this prompt (4xx) shows a healthy server.
        return f"replies with status {reply.status}" if reply.status >= 500 else ""

    async def _restart(self, backend: Backend, why: str) -> None:
        await self._proxy.pause()
        try:
            await self._start_again(backend, why)
            self._update_proxy()
        finally:
            await self._proxy.resume()

    async def _start_again(self, backend: Backend, why: str) -> None:
        """Start a server again with the current weights; the proxy must be paused.

        Raises:
            LLMServerError: The limit of restarts is reached, or the server refuses the weights.
        """
        limit = self._config.max_server_restarts
        while True:
            if self.restarts - self._restarts_before >= limit:
                raise LLMServerError(f"the server {why}, after {limit} restarts in one step")
            self.restarts += 1
            logger.warning("the LLM server %s; restarting it", why)
            await backend.server.stop()
            try:
                await backend.server.start()
                await backend.load(self._weights, self._version)
            except LLMServerError as error:
                if backend.server.is_running():
                    raise
                why = f"died while it was restarted: {error}"
            else:
                return

    def _update_proxy(self) -> None:
        """Point the proxy at the servers' current addresses and version."""
        configs = {learner.model: learner.config for learner in self.learners.values()}
        entries: dict[str, dict[str, Any]] = {}
        for entry in (entry for backend in self._backends for entry in backend.entries):
            name, parameters = entry["model_name"], entry["litellm_params"]
            # Defaults for calls in which the agent sets no sampling parameters.
            defaults = {}
            if name in configs:
                defaults = {**_NEUTRAL_SAMPLING, **_sampling(configs[name])}
            entries[name] = {**entry, "litellm_params": {**defaults, **parameters}}
        others = [entry for entry in self._other_models if entry["model_name"] not in entries]
        self._proxy.update_model_list([*entries.values(), *others])
        for name in configs:
            self._proxy.set_model_version(self._version, name)


async def _call_all(stops: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call all of these, also if some raise: a server that is left keeps its GPU.

    Raises:
        Exception: The first error; others are logged.
    """
    first: Exception | None = None
    for stop in stops:
        try:
            await stop()
        except Exception as error:
            if first is None:
                first = error
            else:
                logger.error("Another failure", exc_info=error)
    if first is not None:
        raise first


def _sampling(config: GRPOConfig) -> dict[str, Any]:
    """Return the sampling parameters of a policy."""
    parameters: dict[str, Any] = {"temperature": config.temperature}
    if config.max_tokens is not None:
        parameters["max_tokens"] = config.max_tokens
    return parameters
