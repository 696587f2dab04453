"""Rollouts as datasets to fine-tune on: SFT, DPO, and reinforcement learning from a file.

::

    report = await export_dataset(store, sft_builder(SftOptions(best=1)), "sft.jsonl")
    print(report)

:func:`sft_rows`, :func:`dpo_rows` and :func:`rl_rows` are pure: samples of one task in, rows out.
:func:`export_dataset` reads the samples from a store, a task at a time, and writes the rows.
"""

from agl_core.export.dpo import DpoOptions, dpo_rows
from agl_core.export.files import read_rows, writing_rows
from agl_core.export.report import ExportReport, Skip
from agl_core.export.rl import RlOptions, rl_rows
from agl_core.export.run import Selection, Split, export_dataset
from agl_core.export.samples import Sample, conversations, task_key, trajectories
from agl_core.export.sft import SftOptions, sft_rows

__all__ = [
    "DpoOptions",
    "ExportReport",
    "RlOptions",
    "Sample",
    "Selection",
    "SftOptions",
    "Skip",
    "Split",
    "conversations",
    "dpo_rows",
    "export_dataset",
    "read_rows",
    "rl_rows",
    "sft_rows",
    "task_key",
    "trajectories",
    "writing_rows",
]
