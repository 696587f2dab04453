"""Tables of real libraries are datasets; this environment has them, with verl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import pandas
import pytest

from agl_core.trainer import check_dataset

ROWS = [{"q": "1+1", "a": 2}, {"q": "2+2", "a": 4}]


@pytest.mark.parametrize(
    "table_of",
    [
        pandas.DataFrame,
        datasets.Dataset.from_list,
        lambda rows: datasets.Dataset.from_list(rows).with_format("numpy"),
        lambda rows: datasets.Dataset.from_list(rows).with_format("torch"),
    ],
    ids=["pandas", "datasets", "numpy format", "torch format"],
)
def test_rows_of_a_table_are_tasks(table_of: Callable[[Any], Any]) -> None:
    dataset = check_dataset("train_dataset", table_of(ROWS))
    assert dataset is not None
    assert [dict(dataset[index]) for index in range(len(dataset))] == ROWS
