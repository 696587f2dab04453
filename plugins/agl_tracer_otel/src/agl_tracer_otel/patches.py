"""Records the patches of instrumentation libraries, and removes those that they leave in place.

Most of them patch through :mod:`wrapt` and remove only the patches that they remember: streams,
methods inherited from a base class, and incomplete activations often stay patched. This module
records every patch when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

_ABSENT: Final = object()


class _Patch(NamedTuple):
    owner: Any
    attribute: str
    before: Any
    """The owner's own attribute; :data:`_ABSENT` if it was inherited."""
    original: Any
    """The wrapped attribute, inherited or not."""
    replacement: Any


class PatchRecord:
    """The recorded patches, in order."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def add(self, owner: Any, attribute: str, replacement: Any) -> None:
        """Record a patch before it is made."""
        before = _own(owner, attribute)
        original = getattr(replacement, "__wrapped__", _ABSENT)
        self._patches.append(_Patch(owner, attribute, before, original, replacement))

    def restore(self) -> list[str]:
        """Remove the patches that are still in place, the last one first.

        An attribute that other code has patched again since is left unchanged.

        Returns:
            The names of the attributes that were restored.
        """
        restored: list[str] = []
        while self._patches:
            owner, attribute, before, original, replacement = self._patches.pop()
            now = _own(owner, attribute)
            # After unpatching, an inherited method is an attribute of the class itself.
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
    """Record the patches made through ``wrapt`` in a ``with`` block; not thread-safe."""
    record = PatchRecord()
    patches: Any = sys.modules.get("wrapt.patches")
    if patches is None:  # not imported, so no library patches through it
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
