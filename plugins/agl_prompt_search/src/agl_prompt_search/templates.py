"""Checks of the templates that a search edits: their placeholders and syntax."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter

from agl_core.types import PromptTemplate

__all__ = ["find_mistake", "placeholders", "unwrap"]

_FENCED = re.compile(r"\A```[\w-]*\n(?P<text>.*?)\n?```\Z", re.DOTALL)
_TAGGED = re.compile(r"\A<(\w*prompt\w*)>\s*(?P<text>.*?)\s*</\1>\Z", re.DOTALL | re.IGNORECASE)


def placeholders(template: PromptTemplate) -> frozenset[str]:
    """Return the names of a template's placeholders; for POML templates none are known.

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
    """Return why an edited template cannot be used; empty if it can.

    Args:
        edited: The edited template.
        wanted: Placeholders of the seed, for which the agent has values.
    """
    if not edited.template.strip():
        return "no edit: the answer is empty"
    try:
        found = placeholders(edited)
    except ValueError as error:
        return f"the edit is not a valid {edited.engine} template: {error}"
    if edited.engine == "poml":
        return ""
    if lost := sorted(wanted - found):
        return f"the edit lost the placeholders {', '.join(lost)}"
    if made_up := sorted(found - wanted):
        return f"the edit has placeholders without values: {', '.join(made_up)}"
    return ""


def unwrap(text: str) -> str:
    """Return the prompt without a code fence or tags around all of it."""
    for pattern in (_FENCED, _TAGGED):
        wrapped = pattern.match(text.strip())
        if wrapped and "```" not in wrapped["text"]:
            return wrapped["text"].strip()
    return text.strip()
