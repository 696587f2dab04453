"""Train files: runs described in TOML, YAML or JSON, for ``agl train`` and ``agl eval``.

:class:`TrainPlan` and :func:`read_train_file` are for programs. The other names are for commands
that read train files. Everything is imported on first use, since the commands' hooks are light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_train.constructors import lightning_cli
    from agl_train.datasets import load_dataset
    from agl_train.file import TrainPlan, read_train_file
    from agl_train.keys import TrainFile
    from agl_train.references import import_reference
    from agl_train.runs import (
        INTERRUPTED,
        blame,
        price_option,
        run_options,
        set_up_logging,
        stopped_by_signals,
    )
    from agl_train.spending import Spending
    from agl_train.train_command import train

__all__ = [
    "INTERRUPTED",
    "Spending",
    "TrainFile",
    "TrainPlan",
    "blame",
    "import_reference",
    "lightning_cli",
    "load_dataset",
    "price_option",
    "read_train_file",
    "run_options",
    "set_up_logging",
    "stopped_by_signals",
    "train",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "TrainFile": "agl_train.keys",
        **dict.fromkeys(("TrainPlan", "read_train_file"), "agl_train.file"),
        **dict.fromkeys(
            (
                "INTERRUPTED",
                "blame",
                "price_option",
                "run_options",
                "set_up_logging",
                "stopped_by_signals",
            ),
            "agl_train.runs",
        ),
        "lightning_cli": "agl_train.constructors",
        "import_reference": "agl_train.references",
        "load_dataset": "agl_train.datasets",
        "Spending": "agl_train.spending",
        "train": "agl_train.train_command",
    },
)
