"""Client for vLLM's own routes, beside those of OpenAI's protocol.

``/collective_rpc``, ``/pause``, ``/resume`` and ``/reset_prefix_cache`` exist with
``VLLM_SERVER_DEV_MODE=1``, the routes of adapters with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import aiohttp

from agl_core.errors import LLMServerError

__all__ = ["Api"]

_PROBE_SECONDS: Final = 10.0
"""An engine in a long prefill answers late."""
_RETRY_SECONDS: Final = 0.2
"""Between two tries to empty a cache in use; the engine sends no event."""
_MAX_SHOWN: Final = 500  # characters of an error's body in a message


class Api:
    """A connection to one server; an async context manager, for one event loop.

    Args:
        root_url: The server's URL, without ``/v1``.
        api_key: Key that it requires, if any.
    """

    def __init__(self, root_url: str, api_key: str | None) -> None:
        self._root_url = root_url
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    # -- readiness ------------------------------------------------------------------------------

    async def serves(self, model: str) -> bool:
        """Return whether the engine is healthy and serves a model of this name."""
        try:
            await self._request_ok("GET", "/health", seconds=_PROBE_SECONDS)
            body = await self._request_ok("GET", "/v1/models", seconds=_PROBE_SECONDS)
            return model in [entry["id"] for entry in body["data"]]
        except LLMServerError:
            return False
        except (KeyError, TypeError):  # another server's reply
            return False

    async def generate_one_token(self, model: str, seconds: float) -> None:
        """Generate one token, so that the work of a first call is done.

        Raises:
            LLMServerError: The call failed, or it returned no token ids.
        """
        call = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0, "logprobs": 0}
        body = await self._request_ok(
            "POST", "/v1/completions", {**call, "return_token_ids": True}, seconds=seconds
        )
        if body["choices"][0].get("token_ids") is None:
            raise LLMServerError("this vLLM does not return token ids: pip install 'vllm>=0.10.2'")

    # -- weights ---------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Hold new calls back and wait until the calls in flight have ended.

        :meth:`resume` must be called afterwards, even if this raises.

        Raises:
            LLMServerError: Calls are still in flight after that time.
        """
        try:
            await self._request_ok("POST", "/pause?mode=wait", seconds=seconds)
        except LLMServerError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            raise LLMServerError(
                f"calls in flight did not end within {seconds:g} s, so the weights stay: "
                "drain the proxy before an update, or raise update_timeout"
            ) from None

    async def resume(self) -> None:
        """Let calls through again."""
        await self._request_ok("POST", "/resume", seconds=_PROBE_SECONDS)

    async def reload(self, path: Path, seconds: float) -> None:
        """Load the weights of a whole model."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._request_ok("POST", "/collective_rpc", call, seconds=seconds)

    async def load_adapter(self, name: str, path: Path, seconds: float, *, replace: bool) -> None:
        """Serve a LoRA adapter under a name; ``replace`` replaces the adapter of that name."""
        call: dict[str, Any] = {"lora_name": name, "lora_path": str(path)}
        if replace:
            call["load_inplace"] = True
        await self._request_ok("POST", "/v1/load_lora_adapter", call, seconds=seconds)

    async def unload_adapter(self, name: str, seconds: float) -> None:
        """Stop serving an adapter."""
        await self._request_ok(
            "POST", "/v1/unload_lora_adapter", {"lora_name": name}, seconds=seconds
        )

    async def reset_prefix_cache(self, seconds: float) -> None:
        """Clear the prefix cache.

        Raises:
            LLMServerError: Calls still use it after that time.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            body = await self._request_ok("POST", "/reset_prefix_cache", seconds=seconds)
            # Older versions reply with an empty body and always succeed.
            if not isinstance(body, dict) or body.get("success", True):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise LLMServerError(f"the prefix cache was in use for {seconds:g} s")
            await asyncio.sleep(_RETRY_SECONDS)

    # -- http ------------------------------------------------------------------------------------

    async def _request_ok(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
    ) -> Any:
        status, raw = await self._request(method, path, body, seconds=seconds)
        _expect(path, status, raw)
        try:
            return json.loads(raw)
        except ValueError:
            return raw

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
    ) -> tuple[int, str]:
        try:
            async with self._session.request(
                method,
                self._root_url + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as reply:
                return reply.status, await reply.text()
        except TimeoutError as error:
            raise LLMServerError(f"vLLM did not answer {path} within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise LLMServerError(f"vLLM did not answer {path}: {error}") from error


def _expect(path: str, status: int, body: str) -> None:
    if status == 200:
        return
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body
    raise LLMServerError(f"vLLM answered {path} with {status}: {str(message)[:_MAX_SHOWN]}")
