"""Exports rollouts as datasets for fine-tuning: SFT, DPO, offline reinforcement learning, ATIF.

::

    report = await export_dataset(store, sft_builder(SftOptions(best=1)), "sft.jsonl")
    print(report)

:func:`sft_rows`, :func:`dpo_rows` and :func:`rl_rows` are pure functions from the samples of one
task to rows. :func:`export_dataset` reads samples from a store, one task at a time, and writes the
rows.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
