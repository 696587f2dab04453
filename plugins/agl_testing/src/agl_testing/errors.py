"""What tests ask of errors."""

from __future__ import annotations

__all__ = ["causes"]


def causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and those that it came from, as a traceback shows them."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return chain
