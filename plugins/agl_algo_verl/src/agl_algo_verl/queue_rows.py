"""Writes rows to TransferQueue, from which verl's trainer reads them.

Keys are ``{uid}_{session}_{index}``: group, rollout of the group, row of the rollout. Tensors have
no padding; verl pads them itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agl_algo_verl.rollout_groups import GroupRow, Prompt
from agl_algo_verl.rows import Row

__all__ = ["QueuePublisher", "row_fields", "row_tags"]


def row_fields(prompt: Prompt, row: GroupRow, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row.

    With P prompt and R response tokens: ``prompts`` (P,), ``responses`` (R,) and ``input_ids``,
    ``position_ids`` (P+R,) are int64; ``response_mask`` and ``loss_mask`` (R,) int64, 1 on sampled
    tokens; ``rm_scores`` (R,) float32, the rollout's reward at the last token, else 0;
    ``rollout_log_probs`` (R,) float32, if they were captured; ``call_advantages`` (R,) float32,
    with credit by turn.
    """
    prompts = torch.tensor(row.row.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(row.row.response_ids, dtype=torch.int64)
    mask = torch.tensor(row.row.mask, dtype=torch.int64)
    scores = torch.zeros(len(mask), dtype=torch.float32)
    scores[-1] = row.reward
    fields: dict[str, Any] = {
        "uid": prompt.uid,
        "session_id": row.session,
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses)),
        "response_mask": mask,
        "loss_mask": mask.clone(),
        "rm_scores": scores,
        "num_turns": row.turns,
        "multi_modal_inputs": {},
        "extra_fields": {"reward_extra_info": {}},
        "reward_model": {"ground_truth": None},
        **extra,
    }
    if row.row.logprobs is not None:
        fields["rollout_log_probs"] = torch.tensor(row.row.logprobs, dtype=torch.float32)
    if row.advantages is not None:
        fields["call_advantages"] = torch.tensor(row.advantages, dtype=torch.float32)
    return fields


def row_tags(prompt: Prompt, row: GroupRow) -> dict[str, Any]:
    """Return the tags of a row: lengths in tokens, and versions of the weights."""
    # Versions are step numbers. Without one the row counts as sampled by the latest weights.
    oldest, newest = row.row.versions or (prompt.step - 1, prompt.step - 1)
    prompt_length, response_length = len(row.row.prompt_ids), len(row.row.response_ids)
    return {
        "status": "success",
        "prompt_len": prompt_length,
        "response_len": response_length,
        "seq_len": prompt_length + response_length,
        "global_steps": prompt.step,
        "min_global_steps": oldest,
        "max_global_steps": newest,
    }


class QueuePublisher:
    """Writes groups to TransferQueue. Thread-safe.

    Args:
        data_sources: Data source of each task, by partition and index.
        filler: Token id of placeholder responses in validation.
    """

    def __init__(self, data_sources: Mapping[str, Sequence[str]], filler: int) -> None:
        self._data_sources = data_sources
        self._filler = filler
        self._idle = threading.Condition()
        self._writers = 0
        self._closed = False

    def close(self, seconds: float) -> None:
        """Refuse further writes, and wait for current ones at most this long.

        The queue's client never answers calls that are made while it closes.
        """
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._writers, seconds)

    def begin(self, prompt: Prompt) -> None:
        """Record that a group is running."""
        with self._writing():
            self._status(prompt, "running")

    def end(self, prompt: Prompt, rows: Sequence[GroupRow], *, usable: bool) -> None:
        """Write the rows of a group, then its end; the trainer never sees part of a group."""
        with self._writing():
            if rows:
                self._write(prompt, rows)
            self._status(prompt, "finished" if usable else "failure")

    def placeholder(self) -> Row:
        """Return a row without sampled tokens, for a rollout of which only the reward counts."""
        return Row([self._filler], [self._filler], [0], [0.0], None, turns=0)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise RuntimeError("the trainer's queue is closed")
            self._writers += 1
        try:
            yield
        finally:
            with self._idle:
                self._writers -= 1
                self._idle.notify_all()

    def _write(self, prompt: Prompt, rows: Sequence[GroupRow]) -> None:
        source = self._data_sources[prompt.partition][prompt.index]
        extra = {"data_source": source, "index": prompt.index}
        tq.kv_batch_put(
            keys=[f"{prompt.uid}_{row.session}_{row.index}" for row in rows],
            fields=list_of_dict_to_tensordict([row_fields(prompt, row, extra) for row in rows]),
            tags=[row_tags(prompt, row) for row in rows],
            partition_id=prompt.partition,
        )

    def _status(self, prompt: Prompt, status: str) -> None:
        tag = {"is_prompt": True, "status": status, "global_steps": prompt.step}
        tq.kv_put(key=prompt.uid, partition_id=prompt.partition, tag=tag)
