"""Findings: the results of checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "info", "warning", "error"]
"""``ok`` and ``info`` need no action; ``warning``: works, but probably not as intended; ``error``:
does not work."""

_EXAMPLES = 3
"""Ids that a message names of many: enough to look at, and they fit on a line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        severity: How bad it is.
        check: Name of the check, stable, for scripts.
        what: Description of the finding.
        todo: Advice to the user; empty if no action is needed.
        ids: Rollouts, plugins or packages that the finding concerns.
    """

    severity: Severity
    check: str
    what: str
    todo: str = ""
    ids: Sequence[str] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ids": list(self.ids)}


def examples(ids: Sequence[str]) -> str:
    """Name a few of many: ``ro-1, ro-2, ro-3 and 7 more``."""
    named = ", ".join(ids[:_EXAMPLES])
    more = len(ids) - _EXAMPLES
    return f"{named} and {more} more" if more > 0 else named
