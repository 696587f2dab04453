"""Checks vLLM's options with the parser of the installed vLLM, without starting it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Final

from agl_core.errors import LLMServerError
from agl_server_vllm.installation import Installation, run_python

__all__ = ["check_words"]

_PARSE_SECONDS: Final = 300.0
"""The parser's module imports most of vLLM: 15 s, and minutes the first time."""
_REFUSED: Final = 2
"""Exit code of argparse."""

# The modules have moved between versions: newest first.
_PARSE: Final = """
import importlib, sys
def find(name, *modules):
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    sys.exit(f"{name} is in none of {', '.join(modules)}")
places = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
utils = ("vllm.utils.argparse_utils", "vllm.utils")
parser = find("make_arg_parser", *places)(find("FlexibleArgumentParser", *utils)(prog="vllm"))
parsed = parser.parse_args(sys.argv[1:])
try:
    find("validate_parsed_serve_args", *places)(parsed)
except (TypeError, ValueError) as error:
    parser.error(str(error))
"""
_ERROR: Final = re.compile(r"^vllm: error: (?:Error: )?(.*)$", re.MULTILINE)


async def check_words(
    installation: Installation, model: str, words: Sequence[str], env: Mapping[str, str]
) -> None:
    """Let the parser of an installed vLLM read the options that it would be started with.

    Args:
        installation: The vLLM.
        model: Model that it would serve.
        words: The options, as words of a command line.
        env: Further environment variables for it.

    Raises:
        LLMServerError: vLLM refuses an option, or its parser cannot be loaded.
    """
    done = await asyncio.to_thread(
        run_python,
        installation.python,
        _PARSE,
        "--model",
        model,
        *words,
        env=env,
        seconds=_PARSE_SECONDS,
    )
    if not done.returncode:
        return
    refusal = _ERROR.search(done.stderr)
    if done.returncode == _REFUSED and refusal is not None:
        raise LLMServerError(f"vLLM {installation.version} refuses its options: {refusal[1]}")
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise LLMServerError(f"the options of vLLM in {installation.python} cannot be read: {last}")
