"""The command ``agl version``."""

from __future__ import annotations

import platform
import sys

import click

from agl_cli_kit.output import print_json


@click.command(epilog="Example: agl version --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of the core, Python and the distributions that provide plugins."""
    from agl_core import __version__
    from agl_core.plugins import PLUGIN_API_VERSION, get_registry

    plugins = {r.dist: r.version for r in get_registry().records}
    if as_json:
        print_json(
            {
                "agl_core": __version__,
                "plugin_api": PLUGIN_API_VERSION,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "executable": sys.executable,
                "plugins": plugins,
            }
        )
        return
    click.echo(f"agl {__version__} (plugin API {PLUGIN_API_VERSION})")
    click.echo(f"python {platform.python_version()} on {platform.platform()}")
    for dist, its_version in sorted(plugins.items()):
        click.echo(f"{dist} {its_version}")
