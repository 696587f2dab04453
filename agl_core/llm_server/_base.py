"""The contract of LLM servers: start, answer calls, load new weights, stop.

::

    async with server:
        put_behind(proxy, server)
        ...
        await server.update_weights("checkpoints/step-10", version="step-10")
        put_behind(proxy, server)

Rules that hold for every server:

* **Start waits until ready.** When :meth:`LLMServer.start` has returned, calls are answered.
* **Stop cleans up.** When :meth:`LLMServer.stop` has returned, every process that it started has
  ended and its port is free, also after a failed start.
* **Updates are atomic.** :meth:`LLMServer.update_weights` either raises, and the old weights stay
  in use, or the new weights answer every call that begins afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from agl_core.errors import LLMServerError


class LLMServer(ABC):
    """Serves one model in OpenAI's protocol. Methods must not be called concurrently."""

    @property
    @abstractmethod
    def model(self) -> str:
        """Model name in requests."""

    @property
    @abstractmethod
    def model_version(self) -> str:
        """Version of the current weights, as given to :meth:`update_weights`; at first ``"0"``."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Base URL for OpenAI clients; ends in ``/v1``.

        Raises:
            LLMServerError: The server does not run.
        """

    @abstractmethod
    async def start(self) -> None:
        """Start and return when calls are answered.

        Raises:
            LLMServerError: It runs already, or it does not become ready; the message contains the
                end of the server's output.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop everything that :meth:`start` started. Idempotent."""

    @abstractmethod
    def is_running(self) -> bool:
        """Tell whether the server was started and has neither been stopped nor crashed."""

    @abstractmethod
    async def update_weights(self, path: str | Path, *, version: str) -> None:
        """Load other weights; they answer all later calls.

        Args:
            path: Path of the weights on the server's machine.
            version: New value of :attr:`model_version`.

        Raises:
            LLMServerError: The weights cannot be used, or the server does not run; the old weights
                stay in use.
        """

    async def check(self) -> None:  # noqa: B027 - a server may have nothing to check
        """Check what :meth:`start` will need, for ``agl train --check``; start nothing.

        Does nothing by default.

        Raises:
            AglError: A start would fail; the message says what to do.
        """

    def check_updates(self, path: str | Path) -> None:  # noqa: B027 - a server may take them all
        """Check that :meth:`update_weights` will take models like this one, before a training.

        Does nothing by default. The server need not run.

        Args:
            path: Folder of the model that the training starts from.

        Raises:
            LLMServerError: The server will refuse the trained model.
        """

    def expect_adapters(self, *, rank: int, count: int = 1) -> None:  # noqa: B027 - as check()
        """Prepare for weights that are LoRA adapters of the model; called before :meth:`start`.

        Does nothing by default. Options that the user has set are not changed.

        Args:
            rank: Highest rank of an adapter.
            count: Number of adapters served at a time.

        Raises:
            LLMServerError: The server's options exclude such adapters, or it runs without them.
        """

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Serve a LoRA adapter of the model beside it, under a name of its own.

        After it :meth:`model_list` has the name too. A later adapter of this name replaces it. The
        adapters end with :meth:`stop`.

        Args:
            name: Model name in requests.
            path: Path of the adapter, in PEFT's format, on the server's machine.

        Raises:
            LLMServerError: The adapter cannot be used, the server does not run, or it serves one
                model only.
        """
        raise LLMServerError(f"{type(self).__name__} serves one model only, without adapters")

    def model_list(self) -> list[dict[str, Any]]:
        """Return this server as a proxy's backend.

        Raises:
            LLMServerError: The server does not run.
        """
        parameters = {"model": f"hosted_vllm/{self.model}", "api_base": self.base_url}
        return [{"model_name": self.model, "litellm_params": parameters}]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
