"""The component ``proxy.direct``: starts, stops and controls the proxy's server.

::

    proxy = DirectProxy(store=store, model_list=[
        {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/Qwen/Qwen3-8B",
                                                  "api_base": "http://127.0.0.1:8000/v1"}}])
    await proxy.start()
    await store.add_resources({"llm": proxy.as_resource()})
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agl_core.errors import LaunchError
from agl_core.plugins import configured_by
from agl_core.proxy import LLMProxy
from agl_core.store import LightningStore
from agl_proxy_direct.app import HEALTH_PATH, ProxyApp
from agl_proxy_direct.config import DirectProxyConfig
from agl_proxy_direct.orders import AWAITED_ORDERS, ORDERS, WorkerSettings
from agl_proxy_direct.own_process import OwnProcess
from agl_proxy_direct.upstream_spec import UpstreamSpec
from agl_serving import (
    ATTEMPT_TOKEN_SECONDS,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    mint_token,
)

__all__ = ["DirectProxy"]

logger = logging.getLogger(__name__)

_CALL_IN_LOOP_TIMEOUT: Final = 10.0
"""Longest wait of :meth:`DirectProxy._call_in_loop`, in seconds."""


class DirectProxy(LLMProxy):
    """Relays model calls to their backends byte by byte, and records each in one span.

    Backends are servers that speak OpenAI's or Anthropic's protocols.

    Options: :class:`DirectProxyConfig`.

    Raises:
        ConfigError: An option is invalid.
    """

    upstream_spec: UpstreamSpec = UpstreamSpec()
    """A subclass or an instance replaces it to use other backends with the same application."""

    @configured_by(DirectProxyConfig)
    def __init__(self, config: DirectProxyConfig) -> None:
        self._store = config.store
        self._model_list = [dict(item) for item in config.model_list or ()]
        self._backends = self.upstream_spec.parse_own(self._model_list)
        self._versions: dict[str | None, str] = {}
        self._paused = False
        # Without the store and the model list, which change while the proxy runs.
        self._config = config.model_copy(update={"store": None, "model_list": None})
        self._args = PythonServerLauncherArgs(
            port=config.port,
            host=config.host,
            access_host=config.access_host,
            launch_mode=config.launch_mode,
            healthcheck_url=HEALTH_PATH if config.launch_mode == "thread" else None,
            thread_join_timeout=config.stop_timeout + 10.0,
        )
        self._app: ProxyApp | None = None
        self._process: OwnProcess | None = None
        self._launcher = PythonServerLauncher(_refuse_calls, self._args)

    # -- store -----------------------------------------------------------------------------------

    def get_store(self) -> LightningStore | None:
        return self._store

    def set_store(self, store: LightningStore) -> None:
        self._store = store
        if self._app is not None:
            self._call_in_loop(lambda app: app.set_store(store))

    # -- start and stop --------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return self._launcher.access_endpoint + "/v1"

    def is_running(self) -> bool:
        if self._process is not None:
            return self._process.is_running()
        return self._app is not None and self._launcher.is_running()

    async def start(self) -> None:
        if self._store is None:
            raise ValueError("a proxy needs a store for spans: pass store=, or call set_store()")
        if self.is_running():
            raise LaunchError(f"the proxy at {self.base_url} runs already")
        needed = "async_safe" if self._args.launch_mode == "asyncio" else "thread_safe"
        if not self._store.capabilities.get(needed):
            raise LaunchError(
                f"{type(self._store).__name__} is not {needed}, which launch_mode="
                f"{self._args.launch_mode!r} needs; wrap it in LightningStoreThreaded"
            )
        self._paused = False
        if self._args.launch_mode == "mp":
            await self._start_process()
        else:
            app = ProxyApp(self._store, self._backends, self._config, self.upstream_spec)
            for model, version in self._versions.items():
                app.balancer.set_version(version, model)
            self._launcher = PythonServerLauncher(app, self._args)
            await self._launcher.start()
            self._app = app
        models = dict.fromkeys(backend.model_name for backend in self._backends)
        logger.info("LLM proxy at %s: %s", self.base_url, ", ".join(models))

    async def _start_process(self) -> None:
        if self._process is not None:
            await self._process.stop()  # clean up after a process that died too often
        self._process = None
        stop_seconds = self._args.thread_join_timeout
        process = OwnProcess(
            self._args.host, self._args.port, stop_seconds, self._store_of_spans, self._settings
        )
        await process.start()
        self._process = process
        # This launcher serves nothing. It has the addresses.
        self._launcher = PythonServerLauncher(_refuse_calls, replace(self._args, port=process.port))

    def _store_of_spans(self) -> LightningStore:
        assert self._store is not None
        return self._store

    def _settings(self) -> WorkerSettings:
        return WorkerSettings(
            self._config,
            self.upstream_spec,
            self._backends,
            dict(self._versions),
            self._paused,
            self._store_of_spans().capabilities,
            logger.getEffectiveLevel(),
        )

    async def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop()
            return
        if self._app is None:
            logger.warning("the proxy does not run; stop() has no effect")
            return
        self._app = None
        await self._launcher.stop()

    def __getstate__(self) -> dict[str, Any]:
        launcher = PythonServerLauncher(_refuse_calls, self._args)
        # The copy of a store in memory would be a different store, so it is left out.
        shared = self._store is not None and self._store.capabilities.get("zero_copy")
        store = self._store if shared else None
        state = {**self.__dict__, "_app": None, "_process": None}
        return state | {"_launcher": launcher, "_store": store}

    # -- models ----------------------------------------------------------------------------------

    def get_model_list(self) -> Sequence[Mapping[str, Any]]:
        return [dict(item) for item in self._model_list]

    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        backends = self.upstream_spec.parse_own(model_list)
        self._model_list = [dict(item) for item in model_list]
        self._backends = backends
        self._order_if_running("backends", backends)

    def set_model_version(self, version: str, model: str | None = None) -> None:
        if model is None:
            self._versions.clear()  # it is the version of all models, so theirs are over
        self._versions.pop(model, None)  # a restart sets them in the order of this dict
        self._versions[model] = version
        self._order_if_running("version", version, model)

    def api_key_for(self, rollout_id: str | None, attempt_id: str | None) -> str | None:
        secret = self._config.auth_token
        if secret is None or rollout_id is None or attempt_id is None:
            return None
        return mint_token(
            secret,
            "attempt",
            lifetime=ATTEMPT_TOKEN_SECONDS,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
        )

    # -- control ---------------------------------------------------------------------------------

    async def pause(self) -> None:
        self._paused = True
        self._order("pause")

    async def drain(self, deadline: float = 60.0, *, abort: bool = False) -> int:
        self._paused = True
        return await self._await_order("drain", deadline, abort)

    async def resume(self) -> None:
        self._paused = False
        self._order("resume")

    async def flush(self, rollout_id: str | None = None, attempt_id: str | None = None) -> None:
        await self._await_order("flush", rollout_id, attempt_id)

    # -- orders to the application ---------------------------------------------------------------

    def _order_if_running(self, name: str, *arguments: Any) -> None:
        if self._app is not None or self.is_running():
            self._order(name, *arguments)

    def _order(self, name: str, *arguments: Any) -> None:
        """Carry out one of ORDERS where the application is; return when it is done."""
        if self._process is not None and self._process.is_running():
            self._process.call(name, *arguments)
        else:
            self._call_in_loop(lambda app: ORDERS[name](app, *arguments))

    async def _await_order(self, name: str, *arguments: Any) -> Any:
        """Carry out one of AWAITED_ORDERS where the application is; return its result."""
        if self._process is not None and self._process.is_running():
            return await self._process.request(name, *arguments)
        app, loop = self._running()
        work = AWAITED_ORDERS[name](app, *arguments)
        if _running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _running(self) -> tuple[ProxyApp, asyncio.AbstractEventLoop]:
        if self._app is None or self._app.loop is None:
            raise LaunchError("the proxy does not run; start() it first")
        return self._app, self._app.loop

    def _call_in_loop(self, do: Callable[[ProxyApp], None]) -> None:
        """Call a function in the proxy's loop, and return when it has returned."""
        app, loop = self._running()
        if _running_loop() is loop:
            do(app)
            return
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                do(app)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        loop.call_soon_threadsafe(run)
        done.result(_CALL_IN_LOOP_TIMEOUT)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _refuse_calls(scope: Any, receive: Any, send: Any) -> None:
    """ASGI application of a proxy that is not started; each start makes the real one."""
    raise LaunchError("the proxy was not started")
