"""Exports rollouts as datasets for fine-tuning: SFT, DPO, offline reinforcement learning, ATIF.

::

    report = await export_dataset(store, sft_builder(SftOptions(best=1)), "sft.jsonl")
    print(report)

:func:`sft_rows`, :func:`dpo_rows` and :func:`rl_rows` are pure functions from the samples of one
task to rows. :func:`export_dataset` reads samples from a store, one task at a time, and writes the
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_export.atif import AtifOptions, atif_documents, atif_rows
    from agl_export.atif_reader import graph_of_atif
    from agl_export.dpo import DpoOptions, dpo_rows
    from agl_export.files import read_rows, writing_rows
    from agl_export.report import ExportReport, Skip
    from agl_export.rl import RlOptions, rl_rows
    from agl_export.run import Selection, Split, export_dataset
    from agl_export.samples import Sample, conversations, task_key, trajectories
    from agl_export.sft import SftOptions, sft_rows

__all__ = [
    "AtifOptions",
    "DpoOptions",
    "ExportReport",
    "RlOptions",
    "Sample",
    "Selection",
    "SftOptions",
    "Skip",
    "Split",
    "atif_documents",
    "atif_rows",
    "conversations",
    "dpo_rows",
    "export_dataset",
    "graph_of_atif",
    "read_rows",
    "rl_rows",
    "sft_rows",
    "task_key",
    "trajectories",
    "writing_rows",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AtifOptions": "agl_export.atif",
        "DpoOptions": "agl_export.dpo",
        "ExportReport": "agl_export.report",
        "RlOptions": "agl_export.rl",
        "Sample": "agl_export.samples",
        "Selection": "agl_export.run",
        "SftOptions": "agl_export.sft",
        "Skip": "agl_export.report",
        "Split": "agl_export.run",
        "atif_documents": "agl_export.atif",
        "atif_rows": "agl_export.atif",
        "conversations": "agl_export.samples",
        "dpo_rows": "agl_export.dpo",
        "export_dataset": "agl_export.run",
        "graph_of_atif": "agl_export.atif_reader",
        "read_rows": "agl_export.files",
        "rl_rows": "agl_export.rl",
        "sft_rows": "agl_export.sft",
        "task_key": "agl_export.samples",
        "trajectories": "agl_export.samples",
        "writing_rows": "agl_export.files",
    },
)
