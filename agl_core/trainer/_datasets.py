"""Datasets of a trainer: lists, tables of other libraries, anything with an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from agl_core.errors import ConfigError
from agl_core.types import Dataset

_TABLES: Final[tuple[tuple[tuple[str, ...], Callable[[Any], list[Any]]], ...]] = (
    (("iloc", "columns"), lambda table: table.to_dict("records")),  # pandas, a DataFrame
    (("iloc",), lambda series: series.tolist()),  # pandas, a Series, whose index is by label
    (("to_dicts",), lambda table: table.to_dicts()),  # polars, a DataFrame
    (("to_pylist",), lambda table: table.to_pylist()),  # pyarrow
)
"""How tables become lists of rows, by the attributes that their libraries give them. No library is
imported for it. A Dataset of Hugging Face is indexed by row, so it is not in the list."""

_HINTS: Final[Mapping[str, str]] = {
    "DatasetDict": "pass one of its splits, such as dataset['train']",
    "IterableDataset": "pass list(dataset.take(1000))",
    "IterableDatasetDict": "pass list(dataset['train'].take(1000))",
    "LazyFrame": "pass its rows: frame.collect()",
}
"""What to pass instead of a dataset that has no rows by index, by the name of its class."""


def check_dataset(name: str, dataset: Any) -> Dataset[Any] | None:
    """Return an argument as a dataset: a table becomes the list of its rows, each a dict.

    Args:
        name: Name of the argument, for messages.
        dataset: The argument; None stays None.

    Raises:
        ConfigError: The argument has no length or no items by index.
    """
    if dataset is None:
        return None
    given = cast("object", dataset)
    kind = type(given).__qualname__
    refused = (str, bytes, dict, type)  # a class has the methods, too
    if kind not in _HINTS and not isinstance(given, refused):
        for attributes, rows in _TABLES:
            if all(hasattr(given, attribute) for attribute in attributes):
                return rows(given)
    if kind in _HINTS or isinstance(given, refused) or not isinstance(given, Dataset):
        hint = _HINTS.get(kind, "it needs a length and items by index, like a list")
        raise ConfigError(f"a {kind} is not a dataset; {hint}", path=name)
    return cast("Dataset[Any]", given)
