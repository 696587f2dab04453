"""Rows in verl's queue, and the bridge between the trainer's thread and the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import anyio.lowlevel
import pytest

from agl_algo_verl.bridge import Bridge
from agl_algo_verl.rollout_groups import GroupRow, Prompt
from agl_algo_verl.rows import Row

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and what it imports

PROMPT = Prompt("g7", 3, 5)
ROW = GroupRow(1, 0, Row([4, 5, 6], [7, 8, 9], [1, 0, 1], [-0.5, 0.0, -0.25], (2, 4)), 0.75, 2)


class TestFields:
    def test_tensors_have_no_padding_and_the_reward_is_at_the_end(self):
        import torch

        from agl_algo_verl.queue_rows import row_fields

        fields = row_fields(PROMPT, ROW, {"data_source": "rooms"})
        assert fields["input_ids"].tolist() == [4, 5, 6, 7, 8, 9]
        assert fields["prompts"].tolist() + fields["responses"].tolist() == [4, 5, 6, 7, 8, 9]
        assert fields["position_ids"].tolist() == list(range(6))
        assert fields["response_mask"].tolist() == fields["loss_mask"].tolist() == [1, 0, 1]
        assert fields["rm_scores"].tolist() == [0.0, 0.0, 0.75]
        assert fields["rollout_log_probs"].tolist() == [-0.5, 0.0, -0.25]
        assert {fields[n].dtype for n in ("prompts", "responses", "response_mask")} == {torch.int64}
        assert fields["rm_scores"].dtype == fields["rollout_log_probs"].dtype == torch.float32
        assert (fields["uid"], fields["data_source"], fields["num_turns"]) == ("g7", "rooms", 2)

    def test_rows_without_logprobs_lack_the_column(self):
        from dataclasses import replace

        from agl_algo_verl.queue_rows import row_fields

        blind = replace(ROW, row=replace(ROW.row, logprobs=None))
        assert "rollout_log_probs" not in row_fields(PROMPT, blind, {})

    def test_advantages_of_calls_reach_the_trainers_batch(self):
        from dataclasses import replace

        import torch
        from verl import DataProto
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        from agl_algo_verl.advantages import add_call_advantages
        from agl_algo_verl.queue_rows import row_fields

        assert "call_advantages" not in row_fields(PROMPT, ROW, {})
        long = replace(ROW, advantages=[0.5, 0.0, -0.25])
        short = replace(ROW, row=Row([4], [7, 8], [1, 1], [-1.0, -1.0], None), advantages=[1, 1])
        names = ("call_advantages", "response_mask")
        fields = [
            {name: row_fields(PROMPT, row, {})[name] for name in names} for row in (long, short)
        ]
        data = DataProto(batch=list_of_dict_to_tensordict(fields).to_padded_tensor())
        data.batch["response_mask"][1, 1] = 0  # as a correction rejects a token
        found = add_call_advantages(data).batch
        wanted = torch.tensor([[0.5, 0.0, -0.25], [1.0, 0.0, 0.0]])
        assert torch.equal(found["advantages"], wanted)
        assert torch.equal(found["returns"], wanted)

    def test_tags_say_which_weights_sampled_the_row(self):
        from dataclasses import replace

        from agl_algo_verl.queue_rows import row_tags

        assert row_tags(PROMPT, ROW) == {
            "status": "success",
            "prompt_len": 3,
            "response_len": 3,
            "seq_len": 6,
            "global_steps": 5,
            "min_global_steps": 2,
            "max_global_steps": 4,
        }
        unknown = row_tags(PROMPT, replace(ROW, row=replace(ROW.row, versions=None)))
        assert (unknown["min_global_steps"], unknown["max_global_steps"]) == (4, 4)

    def test_a_closed_publisher_writes_nothing_more(self):
        from agl_algo_verl.queue_rows import QueuePublisher

        publisher = QueuePublisher({"train": ["x"], "val": []}, filler=0)
        publisher.close(1.0)
        with pytest.raises(RuntimeError, match="queue is closed"):
            publisher.begin(PROMPT)

    def test_prompts_are_identified_by_their_numbers(self):
        import numpy as np
        from verl.utils import tensordict_utils as tu

        from agl_algo_verl.trainer import PromptDispatcher

        class Seen:
            prompts: Sequence[Prompt] = ()

            def submit(self, prompts: Sequence[Prompt]) -> None:
                self.prompts = prompts

        batch = tu.get_tensordict(
            {
                "uid": np.array(["a", "b"], dtype=object),
                "index": np.array([3, 1], dtype=object),
                "raw_prompt": np.array([None, None], dtype=object),
            }
        )
        tu.assign_non_tensor_data(batch, "global_steps", 6)
        seen: Any = Seen()
        PromptDispatcher(seen).generate_sequences(batch)
        assert seen.prompts == [Prompt("a", 3, 6), Prompt("b", 1, 6)]
        tu.assign_non_tensor_data(batch, "validate", True)
        PromptDispatcher(seen).generate_sequences(batch)
        assert [prompt.partition for prompt in seen.prompts] == ["val", "val"]


class TestBridge:
    def make(self, **calls: Any) -> Bridge:
        names = ("submit", "serve", "close", "open", "take_metrics", "step_done", "saved", "finish")
        return Bridge(
            asyncio.get_running_loop(),
            **{name: calls.get(name, lambda *_: None) for name in names},  # pyright: ignore
        )

    async def test_a_wait_ends_when_a_group_does(self):
        bridge = self.make()
        waiting = asyncio.to_thread(bridge.wait, 60.0)
        threading.Timer(0.05, bridge.notify).start()
        began = time.monotonic()
        await waiting
        assert time.monotonic() - began < 30.0

    async def test_a_wait_raises_the_first_of_what_went_wrong(self):
        bridge = self.make()
        bridge.fail(OSError("first"))
        bridge.fail(ValueError("second"))
        with pytest.raises(OSError, match="first"):
            await asyncio.to_thread(bridge.wait, 60.0)
        with pytest.raises(OSError, match="first"):
            bridge.check()

    async def test_calls_are_made_in_the_loop_and_answered(self):
        threads: list[Any] = []

        async def close() -> int:
            threads.append(threading.current_thread())
            return 3

        async def open_(version: int) -> None:
            threads.append((threading.current_thread(), version))

        bridge = self.make(close=close, open=open_)
        assert await asyncio.to_thread(bridge.pause) == 3
        await asyncio.to_thread(bridge.resume, 4)
        here = threading.current_thread()
        assert threads == [here, (here, 4)]

    async def test_figures_of_a_validation_are_reported_once(self):
        """verl returns them from the validation, and again among the figures of the step."""
        reported: list[Any] = []
        bridge = self.make(step_done=lambda *step: reported.append(step))
        bridge.step_done(0, {"val/reward": 0.25})
        bridge.step_done(1, {"loss": 2.0})
        bridge.step_done(2, {"val/reward": 0.5})
        bridge.step_done(2, {"loss": 1.0, "val/reward": 0.5})
        await anyio.lowlevel.checkpoint()
        first, second = {"val/reward": 0.25}, {"loss": 2.0}
        assert reported == [(0, first), (1, second), (2, {"val/reward": 0.5}), (2, {"loss": 1.0})]
