"""Public names that are imported at first use (PEP 562).

So a program imports what it uses, and the options of a component are checked without its
implementation and the libraries behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["lazy_names"]


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``, as its stub says.

    The stub ``__init__.pyi`` beside the package imports each public name from its module, once for
    type checkers, for readers, and for this function.

    Args:
        package: The package's ``__name__``.
        file: The package's ``__file__``.

    Raises:
        ValueError: There is no stub, or it imports from elsewhere than the package.
    """
    return lazy_loader.attach_stub(package, file)  # pyright: ignore[reportUnknownVariableType]
