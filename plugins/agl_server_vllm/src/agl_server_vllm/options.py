"""vLLM's options as words of its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["refuse_managed", "value_of", "words_of"]

_MANAGED: Final = {
    "--model": "path",
    "--served-model-name": "model",
    "--host": "host",
    "--port": "port",
    "--api-key": "api_key",
    "--enable-lora": "lora",
    "--no-enable-lora": "lora",
    "--lora-modules": "adapter, or load_adapter()",
    "--max-lora-rank": "max_lora_rank",
    "--max-loras": "max_loras",
    "--uds": "host and port",
}
"""Options of vLLM that the server sets itself, and the server's own option for each."""


def words_of(args: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line.

    Args:
        args: The words, or a table: ``{"max_model_len": 4096, "enforce_eager": True}``. True is the
            option alone, False its opposite (``--no-…``), None leaves it out, a list becomes
            several words, a table becomes JSON.
    """
    return _of_table(args) if isinstance(args, Mapping) else [str(word) for word in args]


def _of_table(table: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in table.items():
        name = key.strip("-").replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{name}", *(str(item) for item in value)]
        elif isinstance(value, Mapping):
            words += [f"--{name}", json.dumps(value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def value_of(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option in words of a command line; None if it is not there."""
    value = None
    for word, following in zip(words, [*words, None][1:], strict=True):
        name, equals, rest = word.partition("=")
        if name.replace("_", "-") == option:
            value = rest if equals else following
    return value


def refuse_managed(words: Sequence[str]) -> None:
    """Refuse options that the server sets itself or does not support.

    Raises:
        ValueError: One of the words is such an option.
    """
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name in _MANAGED:
            raise ValueError(f"{word} is set by the server's own option {_MANAGED[name]}")
        if name.startswith("--ssl-"):
            raise ValueError(
                f"{word}: vLLM is called over HTTP; give TLS to a proxy in front of it"
            )
