"""The proxy in front of the rollout servers, through which agents call the model in training.

Other models that it serves stay: agents may call them too, and they are not trained.

While weights change no call may be in flight; its answer would mix two models. New calls wait in
the proxy meanwhile, so agents only notice a delay.
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

__all__ = ["AgentProxy", "model_list", "served_model"]

logger = logging.getLogger(__name__)

_QUEUE_SECONDS = 3600.0
"""Longest wait of a call during a pause; longer than any training step."""


def model_list(
    name: str, served: Mapping[str, str], sampling: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the backends: every server under every name.

    Args:
        name: Name that agents call the model by.
        served: Name that each server calls it by, by ``host:port``.
        sampling: Default sampling parameters, by suffix of the name.
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
    """Return the name of the model that a server serves.

    verl gives its servers the path of a local copy, which may differ from the configured path.

    Raises:
        LLMServerError: The server does not answer, or serves no model.
    """
    try:
        async with session.get(f"http://{address}/v1/models") as reply:
            reply.raise_for_status()
            return str((await reply.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, LookupError) as error:
        raise LLMServerError(f"the rollout server at {address} serves no model: {error}") from error


class AgentProxy:
    """Lets agents' calls through to the rollout servers, or holds them back. For the event loop.

    Args:
        proxy: The run's proxy; None makes one on this machine.
        store: Store of the spans.
        name: Name that agents call the model by; None is the last part of its path.
        path: Path of the model.
        train: Sampling parameters of training.
        val: Sampling parameters of validation.
        drain_timeout: Seconds for calls in flight to end.
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
                path="proxy",
            )
        self.proxy: LLMProxy = proxy or DirectProxy(store=store, queue_timeout=_QUEUE_SECONDS)
        self.name = name or PurePosixPath(path.rstrip("/")).name
        self._sampling = {"": dict(train), self.VAL_SUFFIX: dict(val)}
        self._drain_timeout = drain_timeout
        self._started = False
        self._fixed = [
            entry for entry in self.proxy.get_model_list() if entry["model_name"] not in self.models
        ]

    @property
    def models(self) -> list[str]:
        """Names of the model in training."""
        return [self.name + suffix for suffix in self._sampling]

    async def start(self) -> None:
        """Start the proxy; calls wait until :meth:`open`."""
        if not self.proxy.is_running():
            await self.proxy.start()
            self._started = True
        await self.pause()

    async def shut(self) -> None:
        """Hold new calls back and abort those in flight, before the servers stop."""
        await self.proxy.drain(0.0, abort=True)

    async def pause(self) -> None:
        """Hold new calls back, without waiting for those in flight."""
        await self.proxy.pause()

    async def stop(self) -> None:
        """Stop the proxy if it was started here; otherwise let it run."""
        if self.proxy.is_running():
            await self.proxy.resume()  # waiting calls then fail, because the servers are gone
        if self._started:
            self._started = False
            await self.proxy.stop()

    def resource(self, partition: str) -> LLM:
        """Return the resource for agents: the model for training or for validation."""
        suffix = self.VAL_SUFFIX if partition == "val" else ""
        return self.proxy.as_resource(
            model=self.name + suffix, sampling_parameters=self._sampling[suffix]
        )

    async def serve(self, addresses: Sequence[str]) -> None:
        """Send calls to these servers, each ``host:port``.

        Raises:
            LLMServerError: One of them serves no model.
        """
        async with aiohttp.ClientSession() as session:
            served = {address: await served_model(session, address) for address in addresses}
        trained = model_list(self.name, served, self._sampling)
        self.proxy.update_model_list([*trained, *self._fixed])

    async def close(self) -> int:
        """Hold new calls back and wait for those in flight; return the number of aborted ones."""
        aborted = await self.proxy.drain(self._drain_timeout, abort=True)
        if aborted:
            logger.warning("%d model calls were aborted for new weights", aborted)
        return aborted

    async def open(self, version: int) -> None:
        """Let calls through to weights of this version."""
        for model in self.models:
            self.proxy.set_model_version(str(version), model)
        await self.proxy.resume()
