"""``agl prometheus``: serve what other processes measured."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from pathlib import Path

import click

from agl_core.errors import ConfigError
from agl_serving import (
    Message,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    Receive,
    Send,
    listen_options,
    log_level_option,
    run_in_new_loop,
    stop_signal,
)

__all__ = ["prometheus"]

logger = logging.getLogger(__name__)


@click.command(epilog="Example: PROMETHEUS_MULTIPROC_DIR=/tmp/agl agl prometheus --port 4748")
@listen_options(4748)
@click.option(
    "--metrics-path", default="/v1/prometheus", show_default=True, help="Path of the page."
)
@log_level_option
@click.option("--access-log", is_flag=True, help="Log every request.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana, and serve nothing.")
@click.option("--alerts", is_flag=True, help="Print alert rules for Prometheus, and serve nothing.")
def prometheus(
    host: str,
    port: int,
    metrics_path: str,
    log_level: str,
    access_log: bool,
    dashboard: bool,
    alerts: bool,
) -> None:
    """Serve the metrics of processes that share PROMETHEUS_MULTIPROC_DIR.

    A store server shows them itself at /v1/prometheus; this is for runs without one.
    """
    if dashboard:
        text = files("agl_metrics_prometheus").joinpath("grafana/agl.json").read_text("utf-8")
        click.echo(text, nl=False)
        return
    if alerts:
        from agl_metrics_prometheus.alerts import rules

        click.echo(rules(), nl=False)
        return
    from agl_cli_kit import setup_logging

    path = metrics_path.rstrip("/")
    if not path.startswith("/"):
        raise ConfigError("must start with a slash and be more than one", path="--metrics-path")
    from agl_metrics_prometheus.metrics import FOLDER_VARIABLE  # imports the store

    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise ConfigError(
            f"set {FOLDER_VARIABLE} to a folder, here and for the processes that are measured"
        )
    setup_logging(log_level)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # the run may begin later
    except OSError as error:
        raise ConfigError(f"{FOLDER_VARIABLE} is not a folder: {error}") from error
    launcher = PythonServerLauncher(
        _app(Path(folder), path),
        PythonServerLauncherArgs(
            host=host,
            port=port,
            launch_mode="asyncio",
            healthcheck_url="/health",
            access_log=access_log,
            log_level=logging.getLevelNamesMapping()[log_level.upper()],
        ),
    )
    run_in_new_loop(partial(_run, launcher, path))


def _app(folder: Path, path: str) -> Callable[..., Awaitable[None]]:
    from agl_metrics_prometheus.exposition import FolderCollector
    from agl_metrics_prometheus.page import Page

    page = Page(FolderCollector(folder))

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["path"].rstrip("/") == path:
            await page(scope, receive, send)
        else:
            status = 200 if scope["path"] == "/health" else 404
            body = b'{"status":"ok"}' if status == 200 else b'{"detail":"Not Found"}'
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return app


async def _run(launcher: PythonServerLauncher, path: str) -> None:
    stop = stop_signal()
    await launcher.start()
    click.echo(f"Metrics at {launcher.access_endpoint}{path} (Ctrl+C stops)")
    try:
        await stop.wait()
    finally:
        await launcher.stop()
    click.echo("Stopped")
