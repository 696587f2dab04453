"""What instrumentation libraries patch, so that it can be put back when they do not.

Most of them patch through :mod:`wrapt` and take back only what they remember: streams, methods
inherited from a base class, and whatever failed half-way often stay patched. Here every patch is
noted as it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

__all__ = ["PatchRecord", "recorded_patches"]

_ABSENT: Final = object()


class _Patch(NamedTuple):
    owner: Any
    attribute: str
    before: Any
    """What the owner itself had; :data:`_ABSENT` for what it inherited."""
    original: Any
    """What was wrapped, inherited or not."""
    replacement: Any


class PatchRecord:
    """The patches made while it was recorded, in order."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def add(self, owner: Any, attribute: str, replacement: Any) -> None:
        """Note a patch that is about to be made."""
        before = _own(owner, attribute)
        original = getattr(replacement, "__wrapped__", _ABSENT)
        self._patches.append(_Patch(owner, attribute, before, original, replacement))

    def restore(self) -> list[str]:
        """Put back whatever is still patched, last patch first.

        What somebody else has patched on top of it since stays as it is.

        Returns:
            The names of what had to be put back.
        """
        restored: list[str] = []
        while self._patches:
            owner, attribute, before, original, replacement = self._patches.pop()
            now = _own(owner, attribute)
            # An unpatched method that was inherited is now the class's own.
            if now is before or (now is not replacement and now is not original):
                continue
            if before is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)
            restored.append(f"{getattr(owner, '__qualname__', owner)}.{attribute}")
        return restored


def _own(owner: Any, attribute: str) -> Any:
    return cast("Mapping[str, Any]", vars(owner)).get(attribute, _ABSENT)


@contextmanager
def recorded_patches() -> Generator[PatchRecord]:
    """Record what is patched through ``wrapt`` in a ``with`` block; not for several threads."""
    record = PatchRecord()
    patches: Any = sys.modules.get("wrapt.patches")
    if patches is None:  # only instrumentation libraries need it, and they have imported it by now
        yield record
        return
    apply = patches.apply_patch

    def noted(parent: Any, attribute: str, replacement: Any) -> None:
        record.add(parent, attribute, replacement)
        apply(parent, attribute, replacement)

    patches.apply_patch = noted
    try:
        yield record
    finally:
        patches.apply_patch = apply
