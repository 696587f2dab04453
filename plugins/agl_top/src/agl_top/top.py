"""The command ``agl top``."""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.live import Live

from agl_cli_kit import in_terminal, open_store, print_json, store_options
from agl_core.errors import AglError, error_message
from agl_core.store import LightningStore
from agl_top.screen import Screen
from agl_top.snapshot import Sampler, Snapshot
from agl_top.watching import watch

__all__ = ["top"]


@click.command(epilog="Example: agl top --url http://head-node:4747")
@store_options
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    help="Longest time between two readings, in seconds.",
)
@click.option("--once", is_flag=True, help="Print one snapshot and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one snapshot as JSON and end.")
def top(
    backend: str | None,
    path: str | None,
    url: str | None,
    interval: float,
    once: bool,
    as_json: bool,
) -> int:
    """Watch a store: rollouts by status, workers and their load, rewards and rates.

    The screen follows the store's changes until Ctrl+C. Output that is not a terminal gets one
    snapshot. A token for --url is read from AGL_AUTH_TOKEN.
    """
    store = open_store(backend, path, url, reading=True)
    where = url or path or str(getattr(store, "path", "") or "store")
    try:
        if as_json or once or not in_terminal():
            snapshot = asyncio.run(_once(store))
            if as_json:
                print_json(snapshot.as_json())
            else:
                Console(highlight=False).print(Screen(where, snapshot))
        else:
            asyncio.run(_live(store, where, interval))
    except KeyboardInterrupt:
        pass  # how the screen is left
    return 0


async def _once(store: LightningStore) -> Snapshot:
    try:
        return await Sampler(store).take()
    finally:
        await store.close()


async def _live(store: LightningStore, where: str, interval: float) -> None:
    sampler = Sampler(store)
    last: Snapshot | None = None

    async def show() -> None:
        nonlocal last
        problem = ""
        try:
            last = await sampler.take()
        except AglError as error:  # a server that is away may return
            problem = error_message(error)
        live.update(Screen(where, last, problem), refresh=True)

    try:
        with Live(Screen(where, None), screen=True, auto_refresh=False) as live:
            await watch(store, show, interval)
    finally:
        await store.close()
