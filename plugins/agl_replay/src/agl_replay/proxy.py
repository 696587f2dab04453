"""The proxy of replays: it answers from recordings, and records the replay like any other run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from agl_core.genai import Protocol
from agl_core.store import LightningStore
from agl_proxy_direct import Backend, DirectProxy, UpstreamSpec
from agl_replay.recording import Recording
from agl_replay.session import ReplaySession
from agl_replay.upstream import ReplayUpstream

__all__ = ["ReplayProxy", "replay_proxy", "running_ports"]

_ANY_MODEL: Final = "*"
_EMBEDDINGS: Final[tuple[Protocol, ...]] = ("embeddings", "completions", "chat")


class ReplayProxy(DirectProxy):
    """A proxy whose sessions are answered from recordings.

    It answers calls under the URL of an open session only. The ids in that URL are random, and an
    agent knows its own; so it needs no key, and runs with whatever key it has.

    Args:
        backends: Models and protocols of the recorded servers (:func:`recorded_backends`).
        store: Store of the replay's spans.

    Attributes:
        sessions: The open sessions by rollout and attempt. Add one before its first call.
    """

    def __init__(self, backends: tuple[Backend, ...], store: LightningStore) -> None:
        self.sessions: dict[tuple[str, str], ReplaySession] = {}
        self.upstream_spec = UpstreamSpec(
            connect=partial(ReplayUpstream, self.sessions), parse=lambda _: backends
        )
        super().__init__(
            store=store,
            # A second try would take the answer of the next call.
            num_retries=0,
        )


@dataclass
class _Shared:
    """A running proxy and the number of its users."""

    proxy: asyncio.Task[ReplayProxy]
    users: int = 0


_Key = tuple[int, int, tuple[Backend, ...]]
_shared: dict[_Key, _Shared] = {}


@asynccontextmanager
async def replay_proxy(recording: Recording, store: LightningStore) -> AsyncGenerator[ReplayProxy]:
    """Run a proxy for replays of a recording; replays at the same time on one loop share it."""
    backends = recorded_backends(recording)
    # An entry exists only while its loop runs and its store is used, so the ids are unique.
    key = (id(asyncio.get_running_loop()), id(store), backends)
    shared = _shared.get(key)
    if shared is None:
        shared = _shared[key] = _Shared(asyncio.create_task(_started(backends, store)))
    shared.users += 1
    try:
        # Shielded: others wait for the same start when one attempt is cancelled.
        yield await asyncio.shield(shared.proxy)
    finally:
        shared.users -= 1
        if not shared.users:
            del _shared[key]
            await (await shared.proxy).stop()


async def _started(backends: tuple[Backend, ...], store: LightningStore) -> ReplayProxy:
    proxy = ReplayProxy(backends, store)
    await proxy.start()
    return proxy


def running_ports() -> set[int]:
    """Return the ports of this process's replaying proxies."""
    proxies = [one.proxy for one in list(_shared.values()) if one.proxy.done()]
    return {urlsplit(one.result().base_url).port or 0 for one in proxies}


def recorded_backends(recording: Recording) -> tuple[Backend, ...]:
    """Return a backend per recorded model, which speaks what the model's server spoke.

    The last one takes the models that were not recorded, so that a changed name is a difference and
    not an unknown model.
    """
    protocols: dict[str, dict[Protocol, None]] = {}
    providers: dict[str, str] = {}
    captured: set[str] = set()
    for call in recording.calls:
        for model in (str(call.request.get("model")), _ANY_MODEL):
            protocols.setdefault(model, {})[call.backend_protocol] = None
            provider = call.span.attributes.get("gen_ai.provider.name")
            providers.setdefault(model, str(provider or "replay"))
            if call.recorder == "proxy":
                captured.add(model)
    return tuple(
        _backend(model, providers[model], tuple(spoken), capture=model in captured)
        for model, spoken in protocols.items()
    )


def _backend(model: str, provider: str, spoken: Sequence[Protocol], *, capture: bool) -> Backend:
    known = dict.fromkeys((*spoken, *(_EMBEDDINGS if "chat" in spoken else ())))
    return Backend(
        model_name=model,
        model=model,
        provider=provider,
        api_base="replay:",
        protocols=tuple(known),
        token_ids=capture,
        logprobs=capture,
        stream_usage=capture,
    )
