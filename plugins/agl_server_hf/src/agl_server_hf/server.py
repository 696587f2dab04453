"""An LLM server that serves a Hugging Face model from a child process.

::

    async with HFServer("path/of/model") as server:
        await client(base_url=server.base_url).chat.completions.create(model=server.model, ...)
        await server.update_weights("path/of/new/weights", version="step-1")
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

import anyio

from agl_core.errors import LLMServerError, MissingDependencyError
from agl_core.llm_server import LLMServer
from agl_core.plugins import configured_by
from agl_server_hf.config import HFServerConfig
from agl_serving import LOOPBACK, is_wildcard, start_in_thread, url_host

__all__ = ["HFServer"]

_STOP_SECONDS: Final = 5.0
"""Time for the process to end by itself before it is killed."""
_LOG_LINES: Final = 15
"""Number of last log lines that an error message shows."""


class HFServer(LLMServer):
    """Serves a model from PyTorch, in a process of its own.

    It speaks chat and text completions with streams, tools (through the model's chat template;
    calls in the form of the Hermes models), log-probabilities and vLLM's ``return_token_ids``.
    Log-probabilities are those of the model itself, before temperature, top_p and top_k, as vLLM's
    are by default.

    New weights are a folder: a whole model, or a LoRA adapter in PEFT's format. Further adapters
    have model names of their own (:meth:`load_adapter`) and share batches. Weights arrive through a
    pipe that only this object holds. Sequences that are being sampled finish with the old
    weights; later ones wait for the new ones.

    The process ends with :meth:`stop`, and by itself when its parent is dead.

    Options: :class:`HFServerConfig`.
    """

    @configured_by(HFServerConfig)
    def __init__(self, config: HFServerConfig) -> None:
        self._config = config
        self._version = "0"
        self._adapters: dict[str, None] = {}  # a set that keeps its order
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._port = 0

    @property
    def model(self) -> str:
        return self._config.served_name

    @property
    def model_version(self) -> str:
        return self._version

    @property
    def base_url(self) -> str:
        if not self.is_running():
            raise LLMServerError("the server is not running; call start() first")
        host = LOOPBACK if is_wildcard(self._config.host) else self._config.host
        return f"http://{url_host(host)}:{self._port}/v1"

    @property
    def pid(self) -> int:
        """Id of the server's process.

        Raises:
            LLMServerError: The server is not running.
        """
        if self._process is None:
            raise LLMServerError("the server is not running; call start() first")
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        if self.is_running():
            raise LLMServerError(f"the server at {self.base_url} is already running")
        await self.stop()  # clean up after a process that died
        self._version = "0"
        self._adapters.clear()
        self._process = await start_in_thread(self._spawn, self._discard)
        try:
            reply = await self._read_reply(self._config.start_timeout)
        except BaseException:
            await self.stop()
            raise
        if not reply["ok"]:
            await self.stop()
            path = self._config.path
            raise LLMServerError(f"the server of {path} did not start: {reply['error']}")
        self._port = reply["port"]

    async def __aenter__(self) -> HFServer:
        await self.start()
        return self

    async def stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._end()

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        await self._order(path)
        self._version = version

    async def load_adapter(self, name: str, path: str | Path) -> None:
        if name == self.model:
            raise LLMServerError(f"{name!r} is the model's own name; use update_weights()")
        await self._order(path, name)
        self._adapters[name] = None

    def model_list(self) -> list[dict[str, Any]]:
        parameters = {"model": "", "api_base": self.base_url}
        return [
            {"model_name": name, "litellm_params": {**parameters, "model": f"hosted_vllm/{name}"}}
            for name in (self.model, *self._adapters)
        ]

    async def _order(self, path: str | Path, adapter: str | None = None) -> None:
        """Make the process load weights.

        Raises:
            LLMServerError: It refuses them, or does not run.
        """
        process = self._process
        if process is None or process.poll() is not None:
            raise LLMServerError("the server is not running and cannot take weights")
        assert process.stdin is not None
        order = json.dumps({"path": os.path.abspath(path), "adapter": adapter})  # noqa: PTH100, ASYNC240
        try:
            process.stdin.write(order + "\n")
            process.stdin.flush()
            reply = await self._read_reply(self._config.update_timeout)
        except OSError as error:
            raise LLMServerError(f"the server has died: {error}") from error
        except anyio.get_cancelled_exc_class():
            await self.stop()  # it would be unknown which weights are served
            raise
        if not reply["ok"]:
            raise LLMServerError(f"the weights in {path} were refused: {reply['error']}")

    # -- the process -----------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[str]:
        """Start the process.

        Raises:
            LLMServerError: The folder holds no model.
            MissingDependencyError: PyTorch or Transformers is not installed.
        """
        config = self._config
        if not Path(config.path, "config.json").is_file():
            raise LLMServerError(f"{config.path} is not a model's folder: it has no config.json")
        if config.python is None:
            for package in ("torch", "transformers"):
                if find_spec(package) is None:
                    raise MissingDependencyError("llm_server.hf", pip=package)
        self._log = (
            tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
            if config.log_file is None
            else Path(config.log_file).open("a+b")  # noqa: SIM115
        )
        python = config.python or sys.executable
        return subprocess.Popen(  # noqa: S603 -- the user's interpreter
            [python, "-m", "agl_server_hf.worker", config.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Ctrl+C must reach the trainer only, which then stops this process in order.
            start_new_session=True,
            env={"TOKENIZERS_PARALLELISM": "false", **os.environ},
        )

    async def _discard(self, process: subprocess.Popen[str]) -> None:
        """End a process whose start was given up."""
        self._process = process
        await self.stop()

    async def _read_reply(self, timeout: float) -> dict[str, Any]:
        """Return the process's next reply; stop the process if none arrives.

        Raises:
            LLMServerError: The process died, or did not reply in time.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = ""
        with anyio.move_on_after(timeout) as scope:
            line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
        if line:
            return json.loads(line)
        log = self._end_of_log()
        await self.stop()
        why = f"did not reply within {timeout:g} s" if scope.cancelled_caught else "died"
        raise LLMServerError(f"the server of {self._config.path} {why}; the end of its log:\n{log}")

    def _end_of_log(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = collections.deque(self._log, maxlen=_LOG_LINES)
        return b"".join(lines).decode("utf-8", "replace").strip()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):  # the process died with an order unread
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await anyio.to_thread.run_sync(process.wait, _STOP_SECONDS)
            # Kill its whole session, so that no child of it stays.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        log, self._log = self._log, None
        if log is not None:
            log.close()
