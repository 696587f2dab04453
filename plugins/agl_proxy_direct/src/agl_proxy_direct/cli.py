"""``agl proxy``: serve an LLM proxy by itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from agl_core.env import LightningEnvVar
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_serving import freeze_memory, listen_options, log_level_option, stop_signal

__all__ = ["proxy"]


@click.command(
    epilog="Example: agl proxy --port 4000 --model qwen=http://127.0.0.1:8000/v1 "
    "--store http://127.0.0.1:4747"
)
@listen_options(4000)
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="NAME=BASE_URL",
    help="A model and the base URL of its server. Repeatable, also for servers of one model.",
)
@click.option(
    "--provider",
    default="hosted_vllm",
    show_default=True,
    help="Kind of server: hosted_vllm, openai, anthropic, or another that the proxy plugin "
    "knows. Write PROVIDER/UPSTREAM@BASE_URL as BASE_URL to set it per model.",
)
@click.option(
    "--api-key",
    envvar="AGL_PROXY_API_KEY",
    show_envvar=True,
    help="API key for the models' servers.",
)
@click.option("--store", required=True, metavar="URL", help="Store server that spans go to.")
@click.option("--backend", default="direct", show_default=True, help="Proxy plugin to serve.")
@click.option(
    "--auth-token",
    envvar=LightningEnvVar.AGL_AUTH_TOKEN.value,
    show_envvar=True,
    help="Secret for tokens: agents must send one as API key, and the store gets one.",
)
@click.option(
    "--history",
    type=click.Choice(["exact", "continue"]),
    help="Prompts of a conversation's later calls: exact (the default) renders the messages that "
    "the agent sends; continue begins with the tokens of the earlier calls as they were sampled.",
)
@click.option("--insecure", is_flag=True, help="Accept calls from a network without a token.")
@log_level_option
def proxy(
    host: str,
    port: int,
    models: tuple[str, ...],
    provider: str,
    api_key: str | None,
    store: str,
    backend: str,
    auth_token: str | None,
    history: str | None,
    insecure: bool,
    log_level: str,
) -> None:
    """Serve an LLM proxy until Ctrl+C: agents call it instead of their models."""
    from agl_cli_kit import setup_logging
    from agl_serving import run_in_new_loop
    from agl_store_http import LightningStoreClient

    setup_logging(log_level)
    spec: dict[str, Any] = {
        "type": backend,
        "host": host,
        "port": port,
        "model_list": [_entry(model, provider, api_key) for model in models],
        "launch_mode": "asyncio",
    }
    if auth_token is not None:
        spec["auth_token"] = auth_token
    if history is not None:
        spec["history"] = history
    if insecure:
        spec["insecure"] = True
    # The proxy's spool retries by itself, and meanwhile stores what the failing call does not hold.
    client = LightningStoreClient(store, auth_token=auth_token, retry_delays=())
    made = build_component("proxy", spec, inject={"store": client})
    run_in_new_loop(partial(_run, made, client))


def _entry(text: str, provider: str, api_key: str | None) -> dict[str, Any]:
    """Return the entry of a model list for NAME=BASE_URL."""
    name, equals, url = text.partition("=")
    if not equals or not name or not url:
        raise ConfigError(f"--model takes NAME=BASE_URL, not {text!r}")
    model = f"{provider}/{name}"
    upstream, at, where = url.partition("@")
    if at and "://" not in upstream:
        model, url = upstream, where
    params = {"model": model, "api_base": url}
    if api_key is not None:
        params["api_key"] = api_key
    return {"model_name": name, "litellm_params": params}


async def _run(proxy: Any, client: Any) -> None:
    stop = stop_signal()
    try:
        await proxy.start()
        click.echo(f"Serving models at {proxy.base_url} (Ctrl+C stops)")
        freeze_memory()
        await stop.wait()
    finally:
        if proxy.is_running():
            await proxy.stop()
        await client.close()
    click.echo("Stopped")
