"""One vLLM, from its start to its end: what runs, what it serves, and how that is exchanged."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from agl_core.errors import LaunchError, LLMServerError
from agl_core.ids import generate_id
from agl_server_vllm.api import Api
from agl_server_vllm.installation import Installation, resolve_in_cache
from agl_server_vllm.process import KeptProcess
from agl_server_vllm.progress import show_start
from agl_server_vllm.settings import Settings
from agl_server_vllm.weights import tensor_shapes, write_blank_adapter
from agl_serving import bind_socket, is_wildcard, url_host

__all__ = ["Engine", "PortTakenError", "ending"]

_LOOK_SECONDS: Final = 0.25  # between two looks at a server that starts
_PORT_TAKEN: Final = "address already in use"

Load = Callable[[Path], Awaitable[None]]


class PortTakenError(LLMServerError):
    """Somebody took the port between our look and vLLM's."""


class Engine:
    """A vLLM whose processes run; :meth:`begin` makes it answer.

    Args:
        settings: What was asked for.
        installation: The vLLM to run.

    Attributes:
        process: Its processes.
        root_url: Its URL, without ``/v1``.
        served: Folder of the model that it was started with.
        weights: What answers: the folder of an adapter or of a model.
        version: What the weights are called.
        adapters: Further adapters, by the name that calls ask for.
        scratch: A folder of ours, or None.

    Raises:
        LLMServerError: The port is taken, or the interpreter cannot be run.
    """

    def __init__(self, settings: Settings, installation: Installation) -> None:
        self._settings = settings
        self._python = installation.python
        # A name that this vLLM serves and no other does.
        self._mark = f"agl-{generate_id(12)}"
        port = _find_port(settings.host, settings.port)
        host = "127.0.0.1" if is_wildcard(settings.host) else settings.host
        self.root_url = f"http://{url_host(host)}:{port}"
        self.served = self.weights = Path()
        self.version = "0"
        self.adapters: dict[str, Path] = {}
        self.scratch: Path | None = None
        self.process = KeptProcess(
            [*installation.command(settings.path), *settings.options(port, self._mark)],
            settings.environment(self._python),
            grace=settings.stop_timeout,
            log_file=settings.log_file,
        )

    @property
    def lives(self) -> bool:
        return self.process.exit_code is None

    def api(self) -> Api:
        return Api(self.root_url, self._settings.api_key)

    # -- life ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Return when calls are answered; whatever is raised, it has been stopped.

        Raises:
            PortTakenError: The port was taken meanwhile.
            LLMServerError: It ended, or is not ready in time.
        """
        settings, seconds = self._settings, self._settings.start_timeout
        try:
            async with asyncio.timeout(seconds), self.api() as api:
                await self._until_it_answers(api)
                self.served = self.weights = await asyncio.to_thread(
                    resolve_in_cache, self._python, settings.path, settings.env
                )
                if settings.lora:
                    await self._begin_with_adapter(api)
                await api.say_one_token(settings.model, seconds)
        except BaseException as error:
            tail, code = self.process.tail(), self.process.exit_code
            await self.stop(keep_log=isinstance(error, Exception))
            if isinstance(error, TimeoutError):
                raise LLMServerError(
                    f"vLLM was not ready after {seconds:g} s. It said last:\n{tail}"
                ) from None
            if isinstance(error, LLMServerError) and code is not None:
                kind = PortTakenError if _PORT_TAKEN in tail.lower() else LLMServerError
                raise kind(
                    f"vLLM ended while it started ({ending(code)}). It said last:\n{tail}"
                ) from None
            raise

    async def _until_it_answers(self, api: Api) -> None:
        """Return once this very vLLM, and no other on its port, is well.

        Raises:
            LLMServerError: It ended.
        """
        with show_start(self._settings.model) as show:
            while not await api.serves(self._mark):
                if not self.lives:
                    raise LLMServerError("it ended")
                show(self.process.last_line())
                await asyncio.sleep(_LOOK_SECONDS)

    async def _begin_with_adapter(self, api: Api) -> None:
        """Serve the model's name by an adapter, whose place later ones take."""
        settings, adapter = self._settings, self._settings.adapter
        if adapter is None:
            self.scratch = Path(tempfile.mkdtemp(prefix="agl-vllm-"))
            adapter = self.scratch / "blank"
            write_blank_adapter(adapter, tensor_shapes(self.served))
        await api.load_adapter(settings.model, adapter, settings.start_timeout, replace=False)
        self.weights = adapter

    async def stop(self, *, keep_log: bool = False) -> None:
        """End it; the log of one that ended by itself is kept."""
        try:
            await self.process.stop(keep_log=keep_log or not self.lives)
        finally:
            if self.scratch is not None:
                shutil.rmtree(self.scratch, ignore_errors=True)

    # -- weights ---------------------------------------------------------------------------------

    async def update(self, folder: Path, version: str) -> None:
        """Let the model's name be answered by other weights.

        Raises:
            LLMServerError: They cannot be used; the old ones serve on, or else it was stopped.
        """
        settings = self._settings
        async with self.api() as api:

            async def load(what: Path) -> None:
                if settings.lora:
                    await api.load_adapter(
                        settings.model, what, settings.update_timeout, replace=True
                    )
                else:
                    await api.reload(what, settings.update_timeout)

            await self._exchange(api, load, old=self.weights, new=folder)
        self.weights, self.version = folder, version

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Serve a further adapter, or another one of that name."""
        seconds, old = self._settings.update_timeout, self.adapters.get(name)
        async with self.api() as api:

            async def load(what: Path) -> None:
                await api.load_adapter(name, what, seconds, replace=old is not None)

            if old is None:
                await load(folder)
            else:
                await self._exchange(api, load, old=old, new=folder)
        self.adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        """Serve a further adapter no longer."""
        async with self.api() as api:
            await api.unload_adapter(name, self._settings.update_timeout)
        del self.adapters[name]

    async def _exchange(self, api: Api, load: Load, *, old: Path, new: Path) -> None:
        """Load weights while no call is in flight; the old ones again if that fails."""
        seconds = self._settings.update_timeout

        async def load_afresh(what: Path) -> None:
            await load(what)
            await api.reset_prefix_cache(seconds)

        try:
            await api.pause(seconds)
            try:
                await load_afresh(new)
            except BaseException:
                await self._or_stop(load_afresh(old))
                raise
        finally:
            if self.lives:
                await self._or_stop(api.resume())

    async def _or_stop(self, work: Awaitable[None]) -> None:
        """Do what must not fail; a vLLM of unknown weights, or one that is stuck, is stopped."""
        try:
            await work
        except BaseException as error:
            await self.stop(keep_log=True)
            if not isinstance(error, LLMServerError):
                raise
            raise LLMServerError(
                f"vLLM was in no known state after an update and has been stopped: {error} (its "
                f"log is {self.process.log_file})"
            ) from error


def ending(code: int) -> str:
    """Return what an exit code says."""
    return f"exit code {code}" if code <= 128 else f"killed by signal {code - 128}"


def _find_port(host: str, port: int) -> int:
    """Return the port to serve at.

    Raises:
        LLMServerError: It is taken.
    """
    try:
        with bind_socket(host, port) as probe:
            return probe.getsockname()[1]
    except LaunchError as error:
        raise LLMServerError(f"vLLM {error}") from error
