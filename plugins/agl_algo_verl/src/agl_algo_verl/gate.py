"""The proxy before the rollout servers: which they are, and when agents may call them.

While weights change no call may be in flight: it would be answered by two models, or by none. New
calls wait at the proxy meanwhile, so agents notice nothing but the time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import aiohttp

from agl_core.errors import ConfigError, LLMServerError
from agl_core.proxy import LLMProxy
from agl_core.store import LightningStore
from agl_core.types import LLM
from agl_proxy_direct import DirectProxy

__all__ = ["Gate", "model_list", "served_model"]

logger = logging.getLogger(__name__)

_QUEUE_SECONDS = 3600.0
"""How long a call waits for the end of a pause: longer than any step takes."""


def model_list(
    name: str, served: Mapping[str, str], sampling: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the backends: every server under every name.

    Args:
        name: What agents call the model.
        served: What each server calls it, by ``host:port``.
        sampling: Sampling parameters by suffix of the name; requests without them get these.
    """
    return [
        {
            "model_name": name + suffix,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"http://{address}/v1",
                **parameters,
            },
        }
        for suffix, parameters in sampling.items()
        for address, model in served.items()
    ]


async def served_model(session: aiohttp.ClientSession, address: str) -> str:
    """Return what a server calls the model it serves.

    verl gives its servers the path of a local copy, which need not be the configured one.

    Raises:
        LLMServerError: It does not answer, or serves nothing.
    """
    try:
        async with session.get(f"http://{address}/v1/models") as reply:
            reply.raise_for_status()
            return str((await reply.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, LookupError) as error:
        raise LLMServerError(f"the rollout server at {address} serves no model: {error}") from error


class Gate:
    """Opens and closes the way from the agents to the rollout servers; used in the loop.

    Args:
        proxy: The run's proxy; None makes one on this machine.
        store: Where spans go.
        name: What agents call the model; None: the last part of its path.
        path: The model's path.
        train: Sampling parameters of training.
        val: Sampling parameters of validation.
        drain_timeout: Seconds that calls in flight may take to end.
    """

    VAL_SUFFIX = "-val"

    def __init__(
        self,
        proxy: Any | None,
        store: LightningStore,
        *,
        name: str | None,
        path: str,
        train: Mapping[str, Any],
        val: Mapping[str, Any],
        drain_timeout: float,
    ) -> None:
        if proxy is not None and not isinstance(proxy, LLMProxy):
            raise ConfigError(
                f"VERL pauses and redirects the proxy, which {type(proxy).__qualname__} cannot do",
                path="llm_proxy",
            )
        self.proxy: LLMProxy = proxy or DirectProxy(store=store, queue_timeout=_QUEUE_SECONDS)
        self.name = name or PurePosixPath(path.rstrip("/")).name
        self._sampling = {"": dict(train), self.VAL_SUFFIX: dict(val)}
        self._drain_timeout = drain_timeout
        self._started = False

    async def start(self) -> None:
        """Have the proxy run; its calls wait until :meth:`open`."""
        if not self.proxy.is_running():
            await self.proxy.start()
            self._started = True
        await self.pause()

    async def shut(self) -> None:
        """Let new calls wait, and end those in flight: the servers are about to go."""
        await self.proxy.drain(0.0, abort=True)

    async def pause(self) -> None:
        """Let calls wait, from now on, without waiting for those in flight."""
        await self.proxy.pause()

    async def stop(self) -> None:
        """Stop the proxy if it was started here; else have it work on."""
        if self.proxy.is_running():
            await self.proxy.resume()  # calls that still wait are told that the servers are gone
        if self._started:
            self._started = False
            await self.proxy.stop()

    def resource(self, partition: str) -> LLM:
        """Return what agents get: the model for training or for validation."""
        suffix = self.VAL_SUFFIX if partition == "val" else ""
        return self.proxy.as_resource(
            model=self.name + suffix, sampling_parameters=self._sampling[suffix]
        )

    async def serve(self, addresses: Sequence[str]) -> None:
        """Send calls to these servers, ``host:port`` each, from now on.

        Raises:
            LLMServerError: One of them serves nothing.
        """
        async with aiohttp.ClientSession() as session:
            served = {address: await served_model(session, address) for address in addresses}
        self.proxy.update_model_list(model_list(self.name, served, self._sampling))

    async def close(self) -> int:
        """Let new calls wait, and wait until none is in flight; return how many were aborted."""
        aborted = await self.proxy.drain(self._drain_timeout, abort=True)
        if aborted:
            logger.warning("%d model calls were aborted for new weights", aborted)
        return aborted

    async def open(self, version: int) -> None:
        """Let calls through, to weights of this version."""
        self.proxy.set_model_version(str(version))
        await self.proxy.resume()
