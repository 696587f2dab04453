"""Checks and repairs of the templates that a search edits: their placeholders and syntax."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Final

from agl_core.types import PromptTemplate
from agl_prompt_search.replies import prompt_in

__all__ = ["EditRules", "find_mistake", "placeholders"]

logger = logging.getLogger(__name__)

_READ: Final = ("f-string", "jinja")
"""Engines whose placeholders are known here."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.\w+|\[\w+\])*")
_FIELD: Final = re.compile(rf"{_NAME.pattern}(![rsa])?(:[^\s\"']*)?")
_BRACES: Final = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|[{}]")
_DOUBLE: Final = re.compile(r"\{\{\s*[A-Za-z_][\w.]*\s*\}\}")
_LOOSE: Final = re.compile(r"(?<!\{)\{([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\}(?!\})")


def placeholders(template: PromptTemplate) -> frozenset[str]:
    """Return the names of a template's placeholders; of other engines than these none are known.

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
    return _difference(found, wanted) if edited.engine in _READ else ""


def _difference(found: frozenset[str], wanted: frozenset[str]) -> str:
    if lost := sorted(wanted - found):
        return f"the edit lost the placeholders {', '.join(lost)}"
    if made_up := sorted(found - wanted):
        return f"the edit has placeholders without values: {', '.join(made_up)}"
    return ""


@dataclass(frozen=True)
class EditRules:
    """What an edit of a prompt must keep, and how a model's reply becomes one.

    Attributes:
        seed: The template that the search started from.
        names: Its placeholders, for which the agent has values.
        literal: Whether braces in it are text. They are if ``format`` could not fill it, as
            ``{"answer": 1}``: its agent fills in the placeholders by itself.
    """

    seed: PromptTemplate
    names: frozenset[str]
    literal: bool = False

    @classmethod
    def of(cls, seed: PromptTemplate) -> EditRules:
        """Return the rules for edits of a template.

        Raises:
            ValueError: The template is malformed.
        """
        found = placeholders(seed)
        _warn_of_other_engine(seed, found)
        names = frozenset(name for name in found if _NAME.fullmatch(name))
        if seed.engine != "f-string" or names == found:
            return cls(seed, found)
        return cls(seed, frozenset(_LOOSE.findall(seed.template)), literal=True)

    def read(self, reply: str, present: str) -> tuple[str, str]:
        """Return the prompt in a model's reply, and why it cannot be used; one may be empty.

        Args:
            reply: The model's answer.
            present: The prompt that it edits.
        """
        text = prompt_in(reply, present, self.names)
        mistake = self.mistake_in(text)
        if mistake and self.seed.engine == "f-string" and not self.literal:
            repaired = escape_braces(text, self.names)
            if not self.mistake_in(repaired):
                return repaired, ""
        return text, mistake

    def mistake_in(self, text: str) -> str:
        """Return why a prompt cannot be used; empty if it can."""
        if self.literal and text.strip():
            return _difference(frozenset(_LOOSE.findall(text)) & self.names, self.names)
        return find_mistake(self.seed.model_copy(update={"template": text}), self.names)


def _warn_of_other_engine(seed: PromptTemplate, names: frozenset[str]) -> None:
    """Warn if a template has no placeholders of its engine, but some of the other one.

    ``format`` would then leave out the agent's values without an error.
    """
    pattern = _LOOSE if seed.engine == "jinja" else _DOUBLE
    if not names and seed.engine in _READ and (found := pattern.search(seed.template)):
        logger.warning(
            "The prompt has no placeholder of its engine, %s, but %s looks like one of %s",
            seed.engine,
            found[0],
            "f-string" if seed.engine == "jinja" else "jinja",
        )


def escape_braces(text: str, names: frozenset[str]) -> str:
    """Double the braces of a template that hold no placeholder, such as those of JSON examples.

    Names in braces that are not placeholders stay as they are: they would have to be filled in.
    A name that is written with the double braces of Jinja gets single ones if it is not there
    otherwise.
    """
    for name in names:
        if not re.search(rf"(?<!\{{)\{{{re.escape(name)}[!:}}]", text):
            text = re.sub(rf"\{{\{{\s*{re.escape(name)}\s*\}}\}}", f"{{{name}}}", text)

    def escape(found: re.Match[str]) -> str:
        whole = found[0]
        if whole in ("{{", "}}"):
            return whole
        field = found["field"]
        if field is not None and _FIELD.fullmatch(field):
            return whole
        return whole.replace("{", "{{").replace("}", "}}")

    return _BRACES.sub(escape, text)
