"""A runner outlives its token, which its client renews in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agl_core.errors import PermissionDeniedError
from agl_serving import TokenVerifier, mint_token, tokens
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.client import transport
from agl_store_memory import InMemoryLightningStore

SECRET = "a-secret-of-the-operator"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[LightningStoreServer]:
    serving = LightningStoreServer(InMemoryLightningStore(), port=0, auth_token=SECRET)
    await serving.start()
    yield serving
    await serving.stop()


def client_of(server: LightningStoreServer, scope: Any, seconds: float) -> LightningStoreClient:
    token = mint_token(SECRET, scope, lifetime=seconds)
    return LightningStoreClient(server.endpoint, auth_token=token, retry_delays=())


@pytest.mark.parametrize("scope", ["runner", "algorithm"])
async def test_a_client_outlives_its_token(server: LightningStoreServer, scope: str):
    client = client_of(server, scope, 3)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        assert await client.get_rollout_by_id("ro-none") is None
        await asyncio.sleep(0.1)
    await client.close()


async def test_other_tokens_end_as_they_say(server: LightningStoreServer):
    client = client_of(server, "read", 2)
    await client.query_rollouts()
    await asyncio.sleep(2.1)
    with pytest.raises(PermissionDeniedError):
        await client.query_rollouts()
    await client.close()


async def test_it_is_asked_for_once_per_half_life(server: LightningStoreServer, monkeypatch: Any):
    renewals = 0
    renew = transport.Transport._renew_token

    async def counted(self: Any) -> None:
        nonlocal renewals
        renewals += 1
        await renew(self)

    monkeypatch.setattr(transport.Transport, "_renew_token", counted)
    client = client_of(server, "runner", 86_400)
    await asyncio.gather(*(client.get_rollout_by_id("ro-none") for _ in range(20)))
    assert renewals == 1
    await client.close()
    with_secret = LightningStoreClient(server.endpoint, auth_token=SECRET)
    await with_secret.query_rollouts()
    assert renewals == 1
    await with_secret.close()


def test_a_renewal_keeps_what_the_token_says_and_ends_after_90_days(monkeypatch: Any):
    verifier = TokenVerifier(SECRET)
    first = mint_token(SECRET, "runner", lifetime=1000, models=["q"])
    identity = verifier.identify(first.encode())
    assert identity is not None
    renewed = verifier.renew(identity)
    assert renewed is not None
    again = verifier.identify(renewed[0].encode())
    assert again is not None
    assert (again.scope, again.models, again.since) == ("runner", {"q"}, identity.since)
    assert renewed[1] == pytest.approx(1000, abs=1)
    monkeypatch.setattr(tokens, "_RENEWABLE_SECONDS", -1.0)
    assert verifier.renew(again) is None
    for scope in ("admin", "read"):
        other = verifier.identify(mint_token(SECRET, scope, lifetime=1000).encode())
        assert other is not None
        assert verifier.renew(other) is None
