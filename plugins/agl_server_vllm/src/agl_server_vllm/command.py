"""``agl vllm``: serve a model with vLLM, without an algorithm."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from agl_core.errors import ConfigError, LLMServerError
from agl_server_vllm.server import VLLMServer

__all__ = ["read_words", "vllm"]

_PORT = 8000  # vLLM's own default


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: agl vllm --python /envs/vllm/bin/python -- serve Qwen/Qwen3-8B --port 8000",
)
@click.option("--python", metavar="PATH", help="Interpreter that has vLLM; default: this one.")
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for vLLM's output; default: a temporary file, kept if vLLM fails.",
)
@click.option("--start-timeout", default=900.0, show_default=True, help="Seconds until ready.")
@click.option("--insecure", is_flag=True, help="Allow a network to reach vLLM.")
@click.argument("words", metavar="-- [serve] MODEL [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def vllm(
    python: str | None,
    log_file: Path | None,
    start_timeout: float,
    insecure: bool,
    words: tuple[str, ...],
) -> None:
    """Serve a model with vLLM until Ctrl+C, with vLLM's own arguments.

    All of vLLM's processes end with this command, however it ends. With --enable-lora, an adapter
    is served under MODEL's name and can be replaced while vLLM runs.
    """
    from agl_cli_kit import setup_logging

    setup_logging("INFO")
    server = VLLMServer(
        **read_words(words),
        python=python,
        log_file=log_file,
        start_timeout=start_timeout,
        insecure=insecure,
    )
    asyncio.run(_serve(server))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the server's options for the words of a ``vllm serve`` command.

    Raises:
        ConfigError: The words name no model, or two.
    """
    rest = list(words)
    if rest[:1] == ["serve"]:
        del rest[0]
    # vLLM's own command takes the model before the options, too.
    first = [rest.pop(0)] if rest and not rest[0].startswith("-") else []
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", dest="path")
    parser.add_argument("--served-model-name", dest="model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=_PORT)
    parser.add_argument("--api-key", dest="api_key", default=os.environ.get("VLLM_API_KEY"))
    parser.add_argument("--enable-lora", dest="lora", action="store_true")
    parser.add_argument("--max-lora-rank", "--max_lora_rank", type=int, default=16)
    parser.add_argument("--max-loras", "--max_loras", type=int, default=1)
    known, args = parser.parse_known_args(rest)
    options = vars(known)
    paths = [path for path in (*first, options.pop("path")) if path is not None]
    if len(paths) != 1:
        found = f"found {' and '.join(paths)}" if paths else "found none"
        raise ConfigError(f"name one model after --, as in `agl vllm -- Qwen/Qwen3-8B`: {found}")
    return {**options, "path": paths[0], "args": args}


async def _serve(server: VLLMServer) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with server:
            click.echo(f"Serving {server.model} at {server.base_url} (Ctrl+C stops)")
            await server.wait()
            _ = server.base_url  # raises with the reason why vLLM ended
            raise LLMServerError("vLLM has ended")
    click.echo("Stopped")
