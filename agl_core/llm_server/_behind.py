"""Connects an LLM server to a proxy as its backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agl_core.llm_server._base import LLMServer

if TYPE_CHECKING:
    from agl_core.proxy._base import LLMProxy


def put_behind(proxy: LLMProxy, server: LLMServer) -> None:
    """Make a server a backend of a proxy, and set the model version that spans carry.

    Call it again when the server's model, address or weights have changed. Backends of other models
    stay.

    Raises:
        LLMServerError: The server does not run.
    """
    entries = server.model_list()
    served = {entry["model_name"] for entry in entries}
    others = [entry for entry in proxy.get_model_list() if entry["model_name"] not in served]
    proxy.update_model_list([*entries, *others])
    for name in served:
        proxy.set_model_version(server.model_version, name)


@asynccontextmanager
async def serving_behind(proxy: LLMProxy | None, server: LLMServer | None) -> AsyncGenerator[None]:
    """Run a server, if there is one, behind a proxy, if there is one.

    A stopped proxy gets the new backend before its start.

    Raises:
        LLMServerError: The server does not become ready.
    """
    if server is None:
        yield
        return
    async with server:
        if proxy is not None:
            put_behind(proxy, server)
        yield
