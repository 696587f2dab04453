"""The store server of a run with runners elsewhere, and its token."""

from __future__ import annotations

import pytest

from agl_exec_cs import RunServer
from agl_serving import TokenVerifier
from agl_store_http import LightningStoreClient
from agl_store_memory import InMemoryLightningStore

SECRET = "a secret of more than sixteen characters"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGL_SERVER_HOST", "AGL_SERVER_PORT", "AGL_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("secured", [False, True])
def test_loopback_has_a_secret_if_it_is_asked_for(secured: bool) -> None:
    server = RunServer(None, None)
    store = InMemoryLightningStore()
    with server.serve(store, lambda: None, secured_on_loopback=secured) as run:
        assert run.url.startswith("http://127.0.0.1:")
        assert bool(server.secret) == secured
        assert bool(server.runner_token(run)) == secured


def test_the_runners_token_is_of_their_scope_and_outlasts_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGL_AUTH_TOKEN", SECRET)
    server = RunServer("127.0.0.1", 0)

    def never() -> None:
        raise AssertionError("the host was chosen")

    with server.serve(InMemoryLightningStore(), never, secured_on_loopback=False) as run:
        identity = TokenVerifier(SECRET).identify(server.runner_token(run).encode())
    assert identity is not None
    assert identity.scope == "runner"


def test_a_store_with_a_server_is_not_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_AUTH_TOKEN", "token")
    client, server = LightningStoreClient("http://store:4747"), RunServer(None, None)
    with server.serve(client, lambda: None, secured_on_loopback=True) as run:
        assert (run.store, run.url, run.served) == (client, "http://store:4747", None)
        assert server.runner_token(run) == "token"


def test_runners_get_the_token_of_a_store_with_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_AUTH_TOKEN", "another server's")
    client = LightningStoreClient("http://store:4747", auth_token="token")
    server = RunServer(None, None)
    with server.serve(client, lambda: None, secured_on_loopback=True) as run:
        assert server.runner_token(run) == "token"
