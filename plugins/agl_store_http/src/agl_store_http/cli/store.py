"""``agl store``: serve a store, make tokens for it, and look after what it keeps."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from agl_core.env import LightningEnvVar
from agl_core.errors import ConfigError
from agl_core.plugins import AppSpec, build_component, get_registry
from agl_serving import freeze_memory, listen_options, log_level_option, stop_signal
from agl_store_http.cli.data import copy_command, export_command, import_command, vacuum_command

if TYPE_CHECKING:
    from agl_serving import PythonServerLauncher
    from agl_store_http.server.app import StoreApp, StoreAppOptions

__all__ = ["shown_settings", "store"]

logger = logging.getLogger(__name__)

_ADDRESS: Final = re.compile(
    r"([a-z][a-z+.-]*://)(?:[^@/?#]*@)?([\w.,:\[\]-]+(?:/[\w.-]*)?)(?:\?[^@]*)?"
)
"""The parts of an address that may be shown. A text that has ``@`` elsewhere does not match: it may
be in a password."""

_SECRET = click.option(
    "--auth-token",
    envvar=LightningEnvVar.AGL_AUTH_TOKEN.value,
    show_envvar=True,
    help="The server's secret, at least 16 characters.",
)


class _StoreGroup(click.Group):
    """Takes ``--tracker prometheus console`` as version 0.3 does: one option, several names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {record.name for record in get_registry().of_kind("metrics")}
        place = 0
        while place < len(args):
            if args[place] == "--tracker":
                while place + 2 < len(args) and args[place + 2] in known:
                    args.insert(place + 2, "--tracker")
                    place += 2
            place += 1
        return super().parse_args(ctx, args)


@click.group(
    cls=_StoreGroup,
    invoke_without_command=True,
    epilog="Example: agl store --backend sqlite --path runs.db --port 4747",
)
@listen_options(4747)
@click.option(
    "--backend",
    help="Store plugin to serve; by default sqlite (a file agl.db) where it is installed, or else "
    "memory.",
)
@click.option("--path", help="Where the backend keeps its data; short for --set path=PATH.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the backend (see `agl plugins show store.NAME`); repeatable.",
)
@click.option(
    "--tracker",
    multiple=True,
    metavar="NAME",
    help="Where metrics go, e.g. console or prometheus; repeatable.",
)
@click.option("--n-workers", default=1, show_default=True, help="Processes that share the port.")
@_SECRET
@click.option("--insecure", is_flag=True, help="Let a network in without a token.")
@click.option("--cors-origin", multiple=True, help="Origin whose pages may call; repeatable.")
@click.option(
    "--allowed-host",
    multiple=True,
    help="Name of this server; repeatable. By default any on a network.",
)
@click.option("--tls-cert", type=click.Path(exists=True), help="Certificate file (PEM).")
@click.option("--tls-key", type=click.Path(exists=True), help="Its private key (PEM).")
@log_level_option
@click.pass_context
def store(ctx: click.Context, **options: Any) -> None:
    """Serve a store over HTTP until Ctrl+C."""
    if ctx.invoked_subcommand is None:
        _serve(**options)
        return
    for option in ctx.command.params:
        if ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            # Taken silently, `agl store --path a.db vacuum` would empty another store than a.db.
            raise click.UsageError(
                f"{option.opts[0]} says what `agl store` serves; write an option of "
                f"`agl store {ctx.invoked_subcommand}` after its name",
                ctx,
            )


def _serve(
    *,
    host: str,
    port: int,
    backend: str | None,
    path: str | None,
    settings: tuple[str, ...],
    tracker: tuple[str, ...],
    n_workers: int,
    auth_token: str | None,
    insecure: bool,
    cors_origin: tuple[str, ...],
    allowed_host: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    log_level: str,
) -> None:
    from agl_cli_kit import setup_logging
    from agl_core.metrics import build_tracker
    from agl_core.store import default_store
    from agl_serving import (
        PythonServerLauncher,
        PythonServerLauncherArgs,
        accepted_hosts,
        run_in_new_loop,
    )
    from agl_store_http.server.app import StoreAppOptions
    from agl_store_http.server.doors.mounts import installed_apps
    from agl_store_http.server.store_server import HEALTH_PATH, check_exposure

    setup_logging(log_level)
    check_exposure(host, auth_token, insecure)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    chosen = default_store(Path.cwd()) if backend is None else {"type": backend}
    spec = {**chosen, **_parse_settings(settings)}
    if path is not None:
        spec["path"] = path
    apps = installed_apps()
    # Built in this process: a wrong name is reported at once, and copies in worker processes share
    # what a backend prepares here.
    trackers = build_tracker(tracker)
    app_options = StoreAppOptions(
        auth_token=auth_token,
        allowed_hosts=accepted_hosts(host, allowed_host),
        cors_allow_origins=cors_origin,
        mounts=apps,
        tracker=trackers,
    )
    launcher = PythonServerLauncher(
        partial(make_app, spec, app_options, n_workers),
        PythonServerLauncherArgs(
            host=host,
            port=port,
            launch_mode="asyncio" if n_workers == 1 else "mp",
            n_workers=n_workers,
            healthcheck_url=HEALTH_PATH,
            log_level=logging.getLevelNamesMapping()[log_level.upper()],
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        ),
        factory=True,
    )
    where = shown_settings(spec)
    lost = "; nothing in it survives" if spec["type"] == "memory" else ""
    run_in_new_loop(partial(_run, launcher, f"{spec['type']} {where or ''}".strip(), lost, apps))


def shown_settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a backend as the log may show them.

    A text may be a password or hold one, in several forms. So only paths are shown, and of
    addresses the host and the database.
    """
    return {key: _shown(key, value) for key, value in spec.items() if key != "type"}


def _shown(key: str, value: Any) -> Any:
    if key == "path" or isinstance(value, int | float):
        return value
    address = _ADDRESS.fullmatch(str(value))
    return "…" if address is None else address[1] + address[2]


def make_app(spec: Mapping[str, Any], options: StoreAppOptions, n_workers: int) -> StoreApp:
    """Build the store and its API in the process that serves them.

    Raises:
        ConfigError: Several processes would each have a store of their own.
    """
    from agl_store_http.server.app import StoreApp

    backend = build_component("store", dict(spec))
    if n_workers > 1 and not backend.capabilities.get("zero_copy"):
        raise ConfigError(
            f"the store {spec['type']} keeps its data in one process: use --n-workers 1, or a "
            "backend that processes can share"
        )
    return StoreApp(backend, options, close_store=True)


async def _run(
    launcher: PythonServerLauncher, what: str, lost: str, apps: tuple[AppSpec, ...]
) -> None:
    stop = stop_signal()
    await launcher.start()
    click.echo(f"Serving store {what} at {launcher.access_endpoint} (Ctrl+C stops{lost})")
    for app in apps:
        click.echo(f"{app.name.capitalize()} at {launcher.access_endpoint}{app.path}")
    freeze_memory()
    stopped = asyncio.ensure_future(stop.wait())
    ended = asyncio.ensure_future(launcher.wait())
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        stopped.cancel()
        ended.cancel()
        await launcher.stop()
    click.echo("Stopped")


def _parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """Return options by name; a value that is JSON is taken as such, any other as a string."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


for command in (export_command, import_command, copy_command, vacuum_command):
    store.add_command(command)


@store.command(epilog="Example: AGL_AUTH_TOKEN=… agl store token --scope runner --hours 24")
@click.option(
    "--scope",
    type=click.Choice(["admin", "algorithm", "runner", "attempt", "read"]),
    required=True,
    help="Permissions of the token.",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    help="How long it holds.",
)
@click.option("--rollout-id", help="The rollout an attempt token is for.")
@click.option("--attempt-id", help="The attempt an attempt token is for.")
@_SECRET
def token(
    scope: Any,
    hours: float,
    rollout_id: str | None,
    attempt_id: str | None,
    auth_token: str | None,
) -> None:
    """Print an access token signed with the server's secret."""
    from agl_serving import mint_token

    if not auth_token:
        raise ConfigError("say which server's secret signs: --auth-token or AGL_AUTH_TOKEN")
    click.echo(
        mint_token(
            auth_token,
            scope,
            lifetime=hours * 3600,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
        )
    )
