"""Prompt files: the messages that a search sends to models, as files that users can replace.

A prompt file is a Jinja template with a line ``[system]`` or ``[user]`` before each message. The
start of its name is its purpose: ``edit-careful.jinja`` asks for an edit. If a purpose has several
files, one is drawn at random for each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.types import PromptTemplate
from agl_prompt_search.experiments import Experiment

__all__ = ["PromptFiles"]

# Every prompt file is rendered with this sample before a run, which finds misspelt names.
_SAMPLE: Mapping[str, Any] = {
    "prompt_template": "Answer {question}",
    "experiments": [
        Experiment(
            status="succeeded",
            final_reward=0.5,
            messages=[[{"role": "user", "content": "Why?"}]],
            conversation="user: Why?",
            feedback=["Too short."],
            spans=[{"name": "chat", "status": "OK", "attributes": {"key": "value"}}],
        )
    ],
}

_ROLE = re.compile(r"^\[(system|user)\][ \t]*$", re.MULTILINE)


class PromptFiles:
    """The prompt files of a search.

    All of them may use the variables ``prompt_template`` and ``experiments``, a list of
    :class:`~agl_prompt_search.Experiment`.

    Args:
        package: Package that holds the files in its folder ``prompts``.
        purposes: Further variables of each purpose's files, with sample values.
        folder: Folder whose prompt files replace the packaged files of the same purpose.

    Raises:
        ConfigError: The folder has no prompt file, or one of them is malformed.
    """

    def __init__(
        self,
        package: str,
        purposes: Mapping[str, Mapping[str, Any]],
        folder: str | Path | None = None,
    ) -> None:
        packaged = files(package) / "prompts"
        found = {file.name: file.read_text("utf-8") for file in packaged.iterdir()}
        own: dict[str, str] = {}
        if folder is not None:
            own = {
                file.name: file.read_text("utf-8") for file in sorted(Path(folder).glob("*.jinja"))
            }
            if not any(name.startswith(tuple(purposes)) for name in own):
                wanted = " nor ".join(f"{purpose}*.jinja" for purpose in purposes)
                raise ConfigError(f"{folder} has no {wanted}", path="prompts_dir")
        self._sources = {purpose: _of(purpose, own) or _of(purpose, found) for purpose in purposes}
        for purpose, sources in self._sources.items():
            for name, source in sources:
                _check(name, source, {**_SAMPLE, **purposes[purpose]})

    def variants(self, purpose: str) -> list[str]:
        """Return the names of the files of a purpose, sorted."""
        return [name for name, _ in self._sources[purpose]]

    def render(self, purpose: str, variant: int, **values: Any) -> list[dict[str, str]]:
        """Return the messages of one file of a purpose."""
        _, source = self._sources[purpose][variant]
        return _fill(source, values)


def _of(purpose: str, sources: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted(
        (name, text)
        for name, text in sources.items()
        if name.startswith(purpose) and name.endswith(".jinja")
    )


def _split(source: str) -> list[tuple[str, str]]:
    parts = _ROLE.split(source)
    return [(role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True)]


def _check(name: str, source: str, sample: Mapping[str, Any]) -> None:
    from jinja2 import TemplateError

    if _ROLE.split(source)[0].strip() or "user" not in [role for role, _ in _split(source)]:
        raise ConfigError(
            f"{name} must begin with a line [system] or [user] and have a [user] part",
            path="prompts_dir",
        )
    try:
        _fill(source, sample)
    except (InvalidArgumentError, TemplateError) as error:
        raise ConfigError(f"{name}: {error}", path="prompts_dir") from error


def _fill(source: str, values: Mapping[str, Any]) -> list[dict[str, str]]:
    # Split before rendering: the values may contain lines that look like role lines.
    return [
        {"role": role, "content": PromptTemplate(template=text, engine="jinja").format(**values)}
        for role, text in _split(source)
    ]
