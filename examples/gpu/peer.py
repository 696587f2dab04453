"""TRL's ``GRPOTrainer`` on the work of ``run.py``: seconds of a step, memory.

``run.py`` starts this program as a process of its own, if TRL is installed. It prints one JSON
object. The work is the same: model, rollouts of a step in groups, prompt, answer, learning rate,
and a loss that is a mean over tokens. TRL samples with Transformers' ``generate``. On a GPU it
trains weights in bfloat16, which is its fastest way; agl trains float32 weights.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from monitor import GpuMonitor, has_gpu, peak_bytes_of_processes
from sizes import SIZES, build

__all__ = ["beside", "reason_to_leave_out"]

_NEEDS: Final = ("trl", "datasets")


def reason_to_leave_out(options: argparse.Namespace, size: str) -> str:
    """Return why TRL does not run beside agl; empty if it does.

    Args:
        options: The options of ``run.py``.
        size: The model's size.
    """
    if not size[0].isdigit():
        return "only the round sizes are compared"
    if options.turns > 1 or options.lora or options.overlap:
        return "only one turn is compared, without LoRA and overlap, which would be other work"
    missing = [name for name in _NEEDS if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed (pip install trl)" if missing else ""


def beside(result: dict[str, Any]) -> str:
    """Return the line that compares a measurement of agl with TRL's.

    Args:
        result: A result of ``run.py``, with what this program printed as ``peer``.
    """
    peer = result["peer"]
    name = f"{result['size']}, {result['server']}"
    if "left_out" in peer:
        return f"{name}: TRL is not measured beside it: {peer['left_out']}"
    seconds, theirs = result["step_seconds"], peer["step_seconds"]
    memory, their_memory = result["peak_bytes"], peer["peak_bytes"]
    return (
        f"{name}, beside TRL {peer['version']}: step {seconds:.2f} s and {theirs:.2f} s "
        f"(agl / TRL {seconds / theirs:.2f}), memory {memory / 2**30:.1f} GiB and "
        f"{their_memory / 2**30:.1f} GiB ({memory / their_memory:.2f}), sampled tokens of a step "
        f"{result['sampled_tokens']:,.0f} and {peer['sampled_tokens']:,.0f}"
    )


# -- the process -----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train some steps with TRL; return the figures of those after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        if not has_gpu():
            return _train(options, Path(folder), gpu=False)
        with GpuMonitor() as monitor:
            result = _train(options, Path(folder), gpu=True)
        return result | {"peak_bytes": monitor.peak_bytes()}


def _train(options: argparse.Namespace, folder: Path, *, gpu: bool) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    length = options.prompt + options.answer
    built = build(folder / "model", options.size, length=length, device="cuda" if gpu else "cpu")
    messages = [{"role": "user", "content": "x" * (options.prompt - 3)}]  # as in run.py
    sampled: list[int] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        sampled.append(sum(map(len, completion_ids)))
        texts = [completion[0]["content"] for completion in completions]
        return [len(set(text)) / max(len(text), 1) for text in texts]

    class Clock(TrainerCallback):
        """Takes the time at the begin of the first measured step, and at the end of each."""

        began = ended = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == options.warm_up:
                self.began = self._now()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.ended = self._now()

        @staticmethod
        def _now() -> float:
            if gpu:
                torch.cuda.synchronize()  # kernels of the step may still run
            return time.monotonic()

    clock = Clock()
    tokenizer = AutoTokenizer.from_pretrained(built)
    dtype = torch.bfloat16 if gpu else torch.float32
    rows = _rows_of_a_pass(options.rollouts, options.micro_batch_tokens // length)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(built, dtype=dtype),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(
            [{"prompt": messages}] * (options.rollouts // options.group)
        ),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=str(folder / "run"),
            max_steps=options.warm_up + options.steps,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=options.rollouts // rows,
            num_generations=options.group,
            max_completion_length=options.answer,
            temperature=1.0,
            beta=0.0,
            learning_rate=1e-6,  # the default of agl-algo-grpo
            lr_scheduler_type="constant",
            gradient_checkpointing=options.gradient_checkpointing,  # TRL's default is True
            bf16=gpu,
            use_cpu=not gpu,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.train()
    return {
        "version": version("trl"),
        "step_seconds": (clock.ended - clock.began) / options.steps,
        "sampled_tokens": sum(sampled[-options.steps :]) / options.steps,
        "peak_bytes": peak_bytes_of_processes(),
    }


def _rows_of_a_pass(rollouts: int, most: int) -> int:
    """Return how many rollouts a forward pass takes: a divisor of all, as TRL wants it."""
    return max(n for n in range(1, max(most, 1) + 1) if rollouts % n == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure TRL's GRPO on this machine.")
    parser.add_argument("--size", choices=SIZES, required=True)
    for name in ("rollouts", "group", "prompt", "answer", "steps", "warm-up", "micro-batch-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
