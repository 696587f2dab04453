"""Collects the mistakes in a train file, so that one reading tells all of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from agl_core.errors import AglError, ConfigError


class TrainFileError(ConfigError):
    """Several mistakes in a train file.

    Args:
        problems: One error per mistake.
    """

    def __init__(self, problems: Sequence[AglError]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class Problems:
    """The mistakes found so far."""

    def __init__(self) -> None:
        self.found: list[AglError] = []

    @contextmanager
    def collected(self) -> Generator[None]:
        """Keep an error of the ``with`` block, and go on after the block."""
        try:
            yield
        except TrainFileError as error:
            self.found += error.problems
        except AglError as error:
            self.found.append(error)

    def raise_all(self) -> None:
        """Raise the mistake, or all of them as one error; do nothing if there is none.

        Raises:
            AglError: The only mistake.
            TrainFileError: There are several.
        """
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise TrainFileError(self.found)
