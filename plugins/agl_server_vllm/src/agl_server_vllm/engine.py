"""One running vLLM: its start, its weights and their updates, its end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio

from agl_core.errors import LaunchError, LLMServerError
from agl_core.ids import generate_id
from agl_server_vllm.api import Api
from agl_server_vllm.config import VLLMConfig
from agl_server_vllm.installation import Installation, resolve_in_cache
from agl_server_vllm.launch import serve_environment, serve_options
from agl_server_vllm.options import value_of, words_of
from agl_server_vllm.process import KeptProcess
from agl_server_vllm.progress import show_start
from agl_server_vllm.weights import tensor_shapes, write_blank_adapter
from agl_serving import bind_socket, is_wildcard, url_host

__all__ = ["Engine", "PortTakenError", "ending"]

_POLL_SECONDS: Final = 0.25  # interval of the checks whether a starting server is ready
_PORT_TAKEN: Final = "address already in use"

Load = Callable[[Path], Awaitable[None]]


class PortTakenError(LLMServerError):
    """Another process took the port after it was found free."""


class Engine:
    """A vLLM whose processes are running; :meth:`start` waits until it is ready.

    Args:
        config: Options of the server.
        installation: The vLLM to run.

    Attributes:
        process: Its processes.
        root_url: Its URL, without ``/v1``.
        weights: Folder of the served weights: an adapter or a model; None is the model that it was
            started with.
        version: Version of the served weights.
        adapters: Further adapters, by the name that calls ask for.
        scratch: Temporary folder of this object, or None.

    Raises:
        LLMServerError: The port is taken, or the interpreter cannot be run.
    """

    def __init__(self, config: VLLMConfig, installation: Installation) -> None:
        self._config = config
        self._installation = installation
        # Only this vLLM serves this name; it tells it apart from another server on the port.
        self._mark = f"agl-{generate_id(12)}"
        port = _find_port(config.host, config.port)
        host = "127.0.0.1" if is_wildcard(config.host) else config.host
        self.root_url = f"http://{url_host(host)}:{port}"
        self._served: Path | None = None
        self.weights: Path | None = None
        self.version = "0"
        self.adapters: dict[str, Path] = {}
        self._used_names: set[str] = set()
        self.scratch: Path | None = None
        self.process = KeptProcess(
            [*installation.command(str(config.path)), *serve_options(config, port, self._mark)],
            serve_environment(config, installation.python),
            grace=config.stop_timeout,
            log_file=config.log_path,
        )

    @property
    def lives(self) -> bool:
        return self.process.exit_code is None

    def api(self) -> Api:
        return Api(self.root_url, self._config.api_key)

    # -- start and stop --------------------------------------------------------------------------

    async def start(self) -> None:
        """Wait until calls are answered; if this raises, vLLM has been stopped.

        Raises:
            PortTakenError: The port was taken meanwhile.
            LLMServerError: vLLM ended, or is not ready in time.
        """
        config, seconds = self._config, self._config.start_timeout
        try:
            async with asyncio.timeout(seconds), self.api() as api:
                await self._wait_until_ready(api)
                if config.lora:
                    await self._load_first_adapter(api)
                await api.generate_one_token(config.served_name, seconds)
        except BaseException as error:
            tail, code = self.process.tail(), self.process.exit_code
            await self.stop(keep_log=isinstance(error, Exception))
            if isinstance(error, TimeoutError):
                raise LLMServerError(
                    f"vLLM was not ready after {seconds:g} s. The end of its log:\n{tail}"
                ) from None
            if isinstance(error, LLMServerError) and code is not None:
                kind = PortTakenError if _PORT_TAKEN in tail.lower() else LLMServerError
                raise kind(
                    f"vLLM ended during its start ({ending(code)}). The end of its log:\n{tail}"
                ) from None
            raise

    async def _wait_until_ready(self, api: Api) -> None:
        """Wait until this vLLM, not another server on its port, is healthy.

        Raises:
            LLMServerError: It ended.
        """
        with show_start(self._config.served_name) as show:
            while not await api.serves(self._mark):
                if not self.lives:
                    raise LLMServerError("it ended")
                show(self.process.last_line())
                await asyncio.sleep(_POLL_SECONDS)

    async def _load_first_adapter(self, api: Api) -> None:
        """Serve an adapter under the model's name; later adapters replace it."""
        config, adapter = self._config, self._config.adapter_folder
        if adapter is None:
            self.scratch = Path(tempfile.mkdtemp(prefix="agl-vllm-"))
            adapter = self.scratch / "blank"
            write_blank_adapter(adapter, tensor_shapes(await self.served_folder()))
        await api.load_adapter(config.served_name, adapter, config.start_timeout, replace=False)
        self.weights = adapter

    async def stop(self, *, keep_log: bool = False) -> None:
        """Stop vLLM; if it had already ended by itself, keep its log."""
        try:
            with anyio.CancelScope(shield=True):
                await self.process.stop(keep_log=keep_log or not self.lives)
        finally:
            if self.scratch is not None:
                shutil.rmtree(self.scratch, ignore_errors=True)

    # -- weights ---------------------------------------------------------------------------------

    async def served_folder(self) -> Path:
        """Return the folder of the model that it was started with.

        Raises:
            LLMServerError: It cannot be found.
        """
        if self._served is None:
            config, words = self._config, words_of(self._config.args)
            self._served = await asyncio.to_thread(
                resolve_in_cache,
                self._installation.python,
                str(config.path),
                config.env,
                revision=value_of(words, "--revision"),
                download_dir=value_of(words, "--download-dir"),
            )
        return self._served

    async def update(self, folder: Path, version: str) -> None:
        """Serve other weights under the model's name.

        Raises:
            LLMServerError: They cannot be used. The old ones are still served, or vLLM is stopped.
        """
        self._installation.check_updates()
        config = self._config
        old = self.weights or await self.served_folder()
        async with self.api() as api:

            async def load(weights: Path) -> None:
                if config.lora:
                    await api.load_adapter(
                        config.served_name, weights, config.update_timeout, replace=True
                    )
                else:
                    await api.reload(weights, config.update_timeout)

            await self._replace(api, load, old=old, new=folder)
        self.weights, self.version = folder, version

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Serve a further adapter, or replace the one of that name."""
        seconds, used = self._config.update_timeout, name in self._used_names
        if used:
            self._installation.check_updates()
        self._used_names.add(name)
        async with self.api() as api:

            async def load(weights: Path) -> None:
                await api.load_adapter(name, weights, seconds, replace=used)

            if used:
                # The prefix cache knows adapters by their names, also unloaded ones.
                await self._replace(api, load, old=self.adapters.get(name), new=folder)
            else:
                try:
                    await load(folder)
                except LLMServerError as error:
                    if error.__cause__ is None:  # vLLM refused it; without an answer it may serve
                        self._used_names.discard(name)
                    raise
        self.adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        """Stop serving a further adapter."""
        async with self.api() as api:
            await api.unload_adapter(name, self._config.update_timeout)
        del self.adapters[name]

    async def _replace(self, api: Api, load: Load, *, old: Path | None, new: Path) -> None:
        """Load weights while no call is in flight; restore the old ones, if any, if that fails."""
        seconds = self._config.update_timeout

        async def load_and_reset(weights: Path) -> None:
            await load(weights)
            # The cache holds keys and values that the other weights computed.
            await api.reset_prefix_cache(seconds)

        try:
            await api.pause(seconds)
            try:
                await load_and_reset(new)
            except BaseException:
                if old is not None:
                    await self._or_stop(load_and_reset(old))
                raise
        finally:
            if self.lives:
                await self._or_stop(api.resume())

    async def _or_stop(self, work: Awaitable[None]) -> None:
        """Await the work; if it fails, stop vLLM, because its weights are then unknown."""
        try:
            with anyio.CancelScope(shield=True):
                await work
        except BaseException as error:
            await self.stop(keep_log=True)
            if not isinstance(error, LLMServerError):
                raise
            raise LLMServerError(
                f"vLLM's weights were unknown after an update, so it was stopped: {error} (its "
                f"log is {self.process.log_file})"
            ) from error


def ending(code: int) -> str:
    """Return an exit code in words."""
    return f"exit code {code}" if code <= 128 else f"killed by signal {code - 128}"


def _find_port(host: str, port: int) -> int:
    """Return the given port, or a free one for 0.

    Raises:
        LLMServerError: The port is taken.
    """
    try:
        with bind_socket(host, port) as probe:
            return probe.getsockname()[1]
    except LaunchError as error:
        raise LLMServerError(f"vLLM {error}") from error
