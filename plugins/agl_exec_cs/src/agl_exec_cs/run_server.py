"""The store server of a run whose runners are on other machines."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from agl_core.env import LightningEnvVar, resolve_int_env_var, resolve_str_env_var
from agl_core.store import LightningStore
from agl_exec_cs.dead_runners import DeadRunners
from agl_exec_cs.demand import ScaledStore
from agl_exec_cs.served_run import ServedRun, serve_run
from agl_exec_cs.store_access import server_of
from agl_serving import mint_token

__all__ = ["RunServer"]

_TOKEN_SECONDS: Final = 90 * 86_400.0
"""Lifetime of a runner's token: longer than any run."""


class RunServer:
    """Serves the store of a run, and gives its runners their token.

    Args:
        host: Interface to listen on; None reads ``AGL_SERVER_HOST``.
        port: Port; None reads ``AGL_SERVER_PORT``, else takes a free one.

    Attributes:
        host: The interface that was chosen; empty if none was.
        secret: Secret of the server: ``AGL_AUTH_TOKEN``, or one of this run; the store's token for
            a server elsewhere. Empty without one.
    """

    def __init__(self, host: str | None, port: int | None) -> None:
        env = LightningEnvVar
        self.host = resolve_str_env_var(env.AGL_SERVER_HOST, override=host, fallback="")
        self.secret = resolve_str_env_var(env.AGL_AUTH_TOKEN, fallback="")
        self._port = resolve_int_env_var(env.AGL_SERVER_PORT, override=port) or 0

    @contextmanager
    def serve(
        self,
        store: LightningStore,
        find_host: Callable[[], str | None],
        *,
        secured_on_loopback: bool,
    ) -> Generator[ServedRun]:
        """Serve a store for a ``with`` block, unless it has a server.

        Args:
            store: The store.
            find_host: Returns the interface if none was chosen; None is loopback.
            secured_on_loopback: Whether the server needs a secret there, too, as on a network. One
                is made if there is none.

        Raises:
            LaunchError: The server does not start.
        """
        access = server_of(store, 0.0)
        if access is not None:
            self.secret = access.token or ""
            yield ServedRun(store, str(access.url), None, DeadRunners(access))
            return
        host = self.host or find_host()
        if not self.secret and (secured_on_loopback or host is not None):
            self.secret = secrets.token_urlsafe(32)
        token = self.secret or None
        with serve_run(
            ScaledStore(store), host, self._port, any_port=False, auth_token=token
        ) as run:
            yield run

    def runner_token(self, run: ServedRun) -> str:
        """Return the token of the runners of a run; empty if its server has no secret."""
        # The token for a server elsewhere need not be its secret.
        if not self.secret or run.served is None:
            return self.secret
        return mint_token(self.secret, "runner", lifetime=_TOKEN_SECONDS)
