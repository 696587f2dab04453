"""The loop with real TRL, and TRL's trainers on every form of dataset."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    # The libraries warn about each other's next versions.
    pytest.mark.filterwarnings("default::FutureWarning", "default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::UserWarning"),
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "sft_trl"


@pytest.mark.parametrize("form", ["tokens", "messages"])
def test_the_best_samples_make_a_better_model(tmp_path, form):
    command = [sys.executable, "main.py", "--form", form, "--folder", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=EXAMPLE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    head, *table = done.stdout.rstrip().rpartition("\n\n")[2].splitlines()
    assert head.split()[:4] == ["round", "model", "rollouts", "reward"]
    before, after = (float(row.split()[3]) for row in table)
    assert after > before + 0.3
    assert after > 0.8
    rows = [json.loads(line) for line in (tmp_path / "best-0.jsonl").read_text().splitlines()]
    assert {row["reward"] for row in rows} == {1.0}
    assert (tmp_path / "model-1" / "model.safetensors").exists()


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Any, Any]:
    """A model and its tokenizer, loaded from a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agl_tiny_model import build_model, build_tokenizer

    tokenizer = build_tokenizer(["4 5 2 + 2 add"])
    tokenizer.save_pretrained(tmp_path / "tiny")
    build_model(tokenizer).save_pretrained(tmp_path / "tiny")
    folder = str(tmp_path / "tiny")
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


async def fill(store: Any) -> None:
    """Add a good and a bad rollout of two tasks, each with a tool call and an answer."""
    from agl_core.types import Span

    number = 0
    for question, arguments in (("2+2", {"a": 2}), ("3+2", {"b": "x"})):
        for reward, answer in ((1.0, "4"), (0.0, "5")):
            started = await store.start_rollout(question)
            ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
            call = {
                "id": "c",
                "type": "function",
                "function": {"name": "add", "arguments": json.dumps(arguments)},
            }
            asked = {"role": "assistant", "content": "", "tool_calls": [call]}
            first = [{"role": "user", "content": question}]
            second = [*first, asked, {"role": "tool", "content": answer, "tool_call_id": "c"}]
            third = [*second[:2], {"role": "tool", "content": "9", "tool_call_id": "c"}]
            said = {"role": "assistant", "content": answer}
            for sent, got, tokens in (
                (first, asked, ([5, 6], [7])),
                (third, said, ([5, 6, 7, 8], [9 + int(reward)])),
            ):
                number += 1
                attributes = {
                    "agentlightning.operation.input.messages": json.dumps(sent),
                    "agentlightning.operation.input.tools": json.dumps([ADD]),
                    "agentlightning.operation.output.choices": json.dumps([{"message": got}]),
                    "agentlightning.operation.output.id": f"r{number}",
                    "agentlightning.operation.output.prompt_token_ids": tokens[0],
                    "agentlightning.operation.output.response_token_ids": json.dumps([tokens[1]]),
                }
                await store.add_span(
                    Span.from_attributes(
                        name="chat", attributes=attributes, sequence_id=number,
                        start_time=float(number), end_time=number + 0.5, **ids,
                    )
                )  # fmt: skip
            given = {"agentlightning.reward.0.name": "x", "agentlightning.reward.0.value": reward}
            await store.add_span(
                Span.from_attributes(
                    name="reward",
                    attributes=given,
                    sequence_id=number,
                    start_time=number + 1.0,
                    **ids,
                )
            )
            await store.update_attempt(*ids.values(), status="succeeded")


def export(build: Any, path: Path) -> list[dict[str, Any]]:
    from agl_export import export_dataset, read_rows
    from agl_store_memory import InMemoryLightningStore

    async def run() -> None:
        store = InMemoryLightningStore()
        await fill(store)
        await export_dataset(store, build, path, bare=True)

    asyncio.run(run())
    return list(read_rows(path))


def test_sft_trains_on_unchanged_tool_calls(tiny, tmp_path):
    from agl_export import SftOptions, sft_rows
    from fine_tune import to_trl, train

    model, tokenizer = tiny
    rows = export(lambda s, r: sft_rows(s, SftOptions(best=1), r), tmp_path / "x.jsonl")
    assert [len(row["messages"]) for row in rows] == [4, 4]
    turns = to_trl(rows)
    assert len(turns) == 4
    seen: list[str] = []
    original = tokenizer.apply_chat_template

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(original(*args, **{**kwargs, "tokenize": False, "return_dict": False}))
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tokenizer), "apply_chat_template", lambda _self, *a, **k: spy(*a, **k))
        loss = train(model, tokenizer, turns, tmp_path / "out", epochs=1)
    assert loss > 0
    written = "\n".join(seen)
    assert '{"name": "add", "arguments": {"a": 2}}' in written
    assert '{"name": "add", "arguments": {"b": "x"}}' in written  # without "a": null


def test_sft_of_tokens_trains_on_the_sampled_tokens(tiny, tmp_path):
    from agl_export import SftOptions, sft_rows
    from fine_tune import to_trl, train

    options = SftOptions(form="tokens", best=1)
    rows = export(lambda s, r: sft_rows(s, options, r), tmp_path / "x.jsonl")
    assert rows[0] == {"input_ids": [5, 6, 7, 8, 10], "labels": [-100, -100, 7, -100, 10]}
    model, tokenizer = tiny
    assert train(model, tokenizer, to_trl(rows), tmp_path / "out", epochs=1) > 0


def test_dpo_takes_pairs(tiny, tmp_path):
    from trl import DPOConfig, DPOTrainer

    from agl_export import DpoOptions, dpo_rows
    from fine_tune import to_dataset

    rows = export(lambda s, r: dpo_rows(s, DpoOptions(margin=0.5), r), tmp_path / "x.jsonl")
    assert len(rows) == 2
    assert [m["role"] for m in rows[0]["prompt"]] == ["user", "assistant", "tool"]
    model, tokenizer = tiny
    config = DPOConfig(
        output_dir=str(tmp_path / "out"), max_steps=1, report_to=[], use_cpu=True, bf16=False,
        per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = DPOTrainer(
        model=model, args=config, train_dataset=to_dataset(rows), processing_class=tokenizer
    )
    assert trainer.train().training_loss == pytest.approx(0.6931, abs=1e-3)  # log 2, at the start
