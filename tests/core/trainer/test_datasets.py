"""Tables and datasets of other libraries as datasets of a trainer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agl_core.agent import rollout
from agl_core.errors import ConfigError
from agl_core.trainer import Trainer, check_dataset
from agl_store_memory import InMemoryLightningStore

ROWS = [{"q": "a", "n": 1}, {"q": "b", "n": 2}]


class DataFrame:
    """Has what a DataFrame of pandas has: items are columns."""

    iloc = object()
    columns = ("q", "n")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, column: str) -> list[Any]:
        return [row[column] for row in ROWS]

    def to_dict(self, orient: str = "dict") -> Any:
        return ROWS if orient == "records" else {}


class Series:
    """Has what a Series of pandas has: items are by label."""

    iloc = object()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, label: int) -> str:
        return {10: "a", 11: "b"}[label]

    def tolist(self) -> list[str]:
        return ["a", "b"]


class PolarsFrame:
    columns = ("q", "n")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, column: str) -> list[Any]:
        raise KeyError(column)

    def to_dicts(self) -> list[dict[str, Any]]:
        return ROWS


class HuggingFaceDataset:
    """Has what a Dataset of Hugging Face has: an index by row, and values of its format."""

    column_names = ("q", "n")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"q": ROWS[row]["q"], "n": np.int64(ROWS[row]["n"])}

    def to_dict(self) -> dict[str, Any]:
        return {}

    def to_list(self) -> list[Any]:
        raise AssertionError("the whole dataset was read")


@pytest.mark.parametrize(
    ("dataset", "tasks"),
    [
        (DataFrame(), ROWS),
        (Series(), ["a", "b"]),
        (PolarsFrame(), ROWS),
        (HuggingFaceDataset(), ROWS),
        (pa.Table.from_pylist(ROWS), ROWS),
        (pa.array(["a", "b"]), ["a", "b"]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (("a", "b"), ["a", "b"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_rows_are_the_tasks(dataset: Any, tasks: list[Any]) -> None:
    seen: list[Any] = []

    @rollout
    def agent(task: Any) -> float:
        seen.append(task)
        return 1.0

    store = InMemoryLightningStore()
    Trainer(strategy="shm", store=store).dev(agent, dataset)
    assert sorted(seen, key=str) == tasks
    assert {one.status for one in asyncio.run(store.query_rollouts())} == {"succeeded"}


class DatasetDict(dict[str, Any]):
    """Has the name of Hugging Face's class."""


class IterableDataset:
    """Has the name of Hugging Face's class, which has no length."""

    def __iter__(self) -> Any:
        return iter(ROWS)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (DatasetDict(train=ROWS), "val_dataset: a DatasetDict is not a dataset; pass one of its"),
        (IterableDataset(), r"an? IterableDataset is not a dataset; pass list\(dataset.take"),
        (DataFrame, "a type is not a dataset"),
        (iter(ROWS), "list_iterator is not a dataset; it needs a length"),
    ],
    ids=["splits", "stream", "class", "iterator"],
)
def test_what_has_no_rows_by_index_is_refused(dataset: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_dataset("val_dataset", dataset)


@pytest.mark.parametrize("library", ["pandas", "polars", "datasets"])
def test_real_tables(library: str) -> None:
    module = pytest.importorskip(library)
    if library == "datasets":
        made = module.Dataset.from_list(ROWS).with_format("numpy")
    else:
        made = module.DataFrame(ROWS)
    dataset = check_dataset("train_dataset", made)
    assert dataset is not None
    assert [dict(dataset[index]) for index in range(len(dataset))] == ROWS
    if library == "pandas":
        series = made["q"].set_axis([10, 11])
        assert check_dataset("train_dataset", series) == ["a", "b"]
