"""``agl dashboard``: serve a store for a person to look at."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path

import click

from agl_cli_kit import open_store
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_core.store import LightningStore
from agl_serving import port_option, run_in_new_loop, stop_signal
from agl_store_http import LightningStoreServer, StoreAppOptions, installed_apps

__all__ = ["dashboard"]

DEFAULT_PORT = 4750
"""Beside the store server's 4747, so that both run with their defaults."""


@click.command(epilog="Example: agl dashboard runs.db --open")
@click.argument("store", metavar="FILE.db|URL")
@port_option(DEFAULT_PORT)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def dashboard(store: str, port: int, opens: bool) -> None:
    """Show the store in a file, or of a server, as a web page until Ctrl+C.

    The page of a server that has agl-dashboard installed is at its address, under /dashboard. This
    command shows any other server, also one of agent-lightning 0.3, through the API of this one. A
    token for it is read from AGL_AUTH_TOKEN.
    """
    run_in_new_loop(lambda: _serve(store, port, opens))


async def _serve(where: str, port: int, opens: bool) -> None:
    stop = stop_signal()
    store = _open(where)
    # Looking at a file must not fail the attempts of runners that its own process watches.
    options = StoreAppOptions(mounts=installed_apps(), watchdog_seconds=0)
    server = LightningStoreServer(store, "127.0.0.1", port, launch_mode="asyncio", options=options)
    try:
        await server.start()
        page = f"{server.endpoint}/dashboard"
        click.echo(f"Dashboard of {where} at {page} (Ctrl+C stops)")
        if opens:
            await asyncio.to_thread(webbrowser.open, page)
        await stop.wait()
    finally:
        await server.stop()
        await store.close()
    click.echo("Stopped")


def _open(where: str) -> LightningStore:
    """Return the store in a file or behind a URL.

    Raises:
        ConfigError: There is no such file.
    """
    if where.startswith(("http://", "https://")):
        return build_component("store", {"type": "http", "server_address": where})
    if not Path(where).is_file():
        raise ConfigError(f"there is no file {where}")
    return open_store("sqlite", where, None, reading=True)
