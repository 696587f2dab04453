"""An LLM server of Hugging Face models, for one machine and small models.

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
from typing import IO, Any, Final, Literal

import anyio

from agl_algo_grpo.config import HFServerConfig
from agl_core.errors import LLMServerError, MissingDependencyError
from agl_core.llm_server import LLMServer

__all__ = ["HFServer"]

_GRACE: Final = 5.0
"""Seconds that a server has to end by itself."""
_LAST_WORDS: Final = 15
"""Lines of its log that an error shows."""


class HFServer(LLMServer):
    """Serves a model from PyTorch, in a process of its own.

    Speaks chat and text completions with streams, tools (by the model's chat template; calls in the
    form of the Hermes models), log-probabilities and vLLM's ``return_token_ids``. Log-probabilities
    are those of the model itself, before temperature and cuts, as vLLM's are by default.

    New weights are a folder of a whole model, or a LoRA adapter in PEFT's format. They arrive
    through a pipe that only this object holds. Sequences that are being sampled end with the old
    weights; those that come later wait.

    The process ends with :meth:`stop`, and by itself when the process that started it is gone.

    Args:
        path: Folder of the model and its tokenizer.
        model: Name that calls ask for; None is the folder's.
        **options: See :class:`~agl_algo_grpo.config.HFServerConfig`.

    Raises:
        ConfigError: An option is wrong (a ``ValueError``).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        max_model_len: int | None = None,
        max_batch_size: int = 64,
        chat_template: str | None = None,
        threads: int | None = None,
        seed: int | None = None,
        python: str | None = None,
        start_timeout: float = 300.0,
        update_timeout: float = 300.0,
        log_file: str | Path | None = None,
    ) -> None:
        self._config = HFServerConfig(
            path=str(path),
            model=model,
            host=host,
            port=port,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            max_batch_size=max_batch_size,
            chat_template=chat_template,
            threads=threads,
            seed=seed,
            python=python,
            start_timeout=start_timeout,
            update_timeout=update_timeout,
            log_file=None if log_file is None else str(log_file),
        )
        self._version = "0"
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
            raise LLMServerError("the server does not run; start() it first")
        return f"http://{self._config.host}:{self._port}/v1"

    @property
    def pid(self) -> int:
        """The id of the process.

        Raises:
            LLMServerError: There is none.
        """
        if self._process is None:
            raise LLMServerError("the server does not run; start() it first")
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        if self.is_running():
            raise LLMServerError(f"the server at {self.base_url} runs already")
        await self.stop()  # what is left of one that died
        self._version = "0"
        self._process = self._spawn()
        try:
            said = await self._hear(self._config.start_timeout)
        except BaseException:
            await self.stop()
            raise
        if not said["ok"]:
            await self.stop()
            path = self._config.path
            raise LLMServerError(f"the server of {path} did not start: {said['error']}")
        self._port = said["port"]

    async def __aenter__(self) -> HFServer:
        await self.start()
        return self

    async def stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._end()

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            raise LLMServerError("the server does not run, so it takes no weights")
        assert process.stdin is not None
        order = json.dumps({"path": os.path.abspath(path), "version": version})  # noqa: PTH100, ASYNC240
        try:
            process.stdin.write(order + "\n")
            process.stdin.flush()
            said = await self._hear(self._config.update_timeout)
        except OSError as error:
            raise LLMServerError(f"the server is gone: {error}") from error
        except anyio.get_cancelled_exc_class():
            await self.stop()  # nobody would know which weights answer
            raise
        if not said["ok"]:
            raise LLMServerError(f"the weights in {path} were refused: {said['error']}")
        self._version = version

    # -- the process -----------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[str]:
        """Start the process.

        Raises:
            LLMServerError: There is no model.
            MissingDependencyError: There is no PyTorch.
        """
        config = self._config
        if not Path(config.path, "config.json").is_file():
            raise LLMServerError(f"{config.path} holds no model: there is no config.json")
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
            [python, "-m", "agl_algo_grpo.hf.worker", config.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Ctrl+C is for the trainer, which stops this process in good order.
            start_new_session=True,
            env={"TOKENIZERS_PARALLELISM": "false", **os.environ},
        )

    async def _hear(self, timeout: float) -> dict[str, Any]:
        """Return the next thing the process says; end it if it says nothing.

        Raises:
            LLMServerError: It died, or said nothing in time.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = ""
        with anyio.move_on_after(timeout) as scope:
            line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
        if line:
            return json.loads(line)
        last = self._last_words()
        await self.stop()
        why = f"said nothing for {timeout:g} s" if scope.cancelled_caught else "died"
        raise LLMServerError(f"the server of {self._config.path} {why}; its last words:\n{last}")

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = collections.deque(self._log, maxlen=_LAST_WORDS)
        return b"".join(lines).decode("utf-8", "replace").strip()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):  # it is gone already, with an order unread
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await anyio.to_thread.run_sync(process.wait, _GRACE)
            # All of its session: what it may have started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        log, self._log = self._log, None
        if log is not None:
            log.close()
