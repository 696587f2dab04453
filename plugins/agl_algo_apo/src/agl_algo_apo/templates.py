"""Prompt templates: the one that is improved, and those that ask a model to improve it.

A prompt file is a Jinja template with a line ``[system]`` or ``[user]`` before each message. Files
called ``gradient*.jinja`` ask for a critique, files called ``edit*.jinja`` for an edit; of several
one is drawn for each question. They may use ``prompt_template``, ``experiments`` (a list of
:class:`~agl_algo_apo.experiments.Experiment`) and, for an edit, ``critique``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from agl_algo_apo.experiments import Experiment
from agl_core.errors import ConfigError
from agl_core.types import PromptTemplate

__all__ = ["PromptFiles", "Purpose", "find_mistake", "placeholders", "unwrap"]

Purpose = Literal["gradient", "edit"]

# A prompt file is filled in with this once before a run, which finds a misspelt name.
_SAMPLE: Mapping[str, Any] = {
    "prompt_template": "Answer {question}",
    "critique": "- It does not say how.",
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
_FENCED = re.compile(r"\A```[\w-]*\n(?P<text>.*?)\n?```\Z", re.DOTALL)
_TAGGED = re.compile(r"\A<(\w*prompt\w*)>\s*(?P<text>.*?)\s*</\1>\Z", re.DOTALL | re.IGNORECASE)


class PromptFiles:
    """The questions put to the models.

    Args:
        folder: A folder whose prompt files replace the packaged ones of the same purpose.

    Raises:
        ConfigError: The folder has no prompt file, or one of them is malformed.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        packaged = files("agl_algo_apo") / "prompts"
        found = {file.name: file.read_text("utf-8") for file in packaged.iterdir()}
        own: dict[str, str] = {}
        if folder is not None:
            own = {
                file.name: file.read_text("utf-8") for file in sorted(Path(folder).glob("*.jinja"))
            }
            if not any(name.startswith(("gradient", "edit")) for name in own):
                raise ConfigError(
                    f"{folder} has neither gradient*.jinja nor edit*.jinja", path="prompts_dir"
                )
        self._sources = {
            purpose: _of(purpose, own) or _of(purpose, found) for purpose in ("gradient", "edit")
        }
        for name, source in (pair for pairs in self._sources.values() for pair in pairs):
            _check(name, source)

    def variants(self, purpose: Purpose) -> list[str]:
        """Return the names of the files of a purpose, sorted."""
        return [name for name, _ in self._sources[purpose]]

    def render(self, purpose: Purpose, variant: int, **values: Any) -> list[dict[str, str]]:
        """Return the messages of one of the files of a purpose."""
        _, source = self._sources[purpose][variant]
        return _fill(source, values)


def _of(purpose: str, sources: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(
        (name, text)
        for name, text in sources.items()
        if name.startswith(purpose) and name.endswith(".jinja")
    )


def _split(source: str) -> list[tuple[str, str]]:
    parts = _ROLE.split(source)
    return [(role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True)]


def _check(name: str, source: str) -> None:
    from jinja2 import TemplateError

    if _ROLE.split(source)[0].strip() or "user" not in [role for role, _ in _split(source)]:
        raise ConfigError(
            f"{name} must begin with a line [system] or [user] and have a [user] part",
            path="prompts_dir",
        )
    try:
        _fill(source, _SAMPLE)
    except TemplateError as error:
        raise ConfigError(f"{name}: {error}", path="prompts_dir") from error


def _fill(source: str, values: Mapping[str, Any]) -> list[dict[str, str]]:
    # The roles are told apart before anything is filled in: what is filled in may contain them.
    return [
        {"role": role, "content": PromptTemplate(template=text, engine="jinja").format(**values)}
        for role, text in _split(source)
    ]


# -- the prompt that is improved -------------------------------------------------------------------


def placeholders(template: PromptTemplate) -> frozenset[str]:
    """Return the names that a template wants values for; none are known of a POML template.

    Raises:
        ValueError: The template is malformed.
    """
    if template.engine == "f-string":
        return frozenset(_fields(template.template))
    if template.engine == "jinja":
        from jinja2 import TemplateSyntaxError, meta
        from jinja2.sandbox import SandboxedEnvironment

        try:
            tree = SandboxedEnvironment().parse(template.template)
        except TemplateSyntaxError as error:
            raise ValueError(str(error)) from error
        return frozenset(meta.find_undeclared_variables(tree))
    return frozenset()


def _fields(text: str) -> Sequence[str]:
    found: list[str] = []
    for _, name, spec, _ in Formatter().parse(text):
        if name is not None:
            found += [name, *_fields(spec or "")]
    return found


def find_mistake(edited: PromptTemplate, wanted: frozenset[str]) -> str:
    """Tell why an edited template cannot be used; empty if it can.

    Args:
        edited: The template.
        wanted: The placeholders of the seed, which the agent has values for.
    """
    try:
        found = placeholders(edited)
    except ValueError as error:
        return f"the edit is no {edited.engine} template: {error}"
    if edited.engine == "poml":
        return ""
    if lost := sorted(wanted - found):
        return f"the edit lost the placeholders {', '.join(lost)}"
    if made_up := sorted(found - wanted):
        return f"the edit has placeholders without values: {', '.join(made_up)}"
    return ""


def unwrap(text: str) -> str:
    """Take the fence or the tags off a prompt that an editor put around all of it."""
    for pattern in (_FENCED, _TAGGED):
        wrapped = pattern.match(text.strip())
        if wrapped and "```" not in wrapped["text"]:
            return wrapped["text"].strip()
    return text.strip()
