"""Measures GRPO on this machine: tokens per second, how busy the GPU is, memory, precision.

python examples/gpu/run.py                                  # with a GPU 10M, 100M and 1B, else 10M
python examples/gpu/run.py --sizes 1B --servers hf vllm
python examples/gpu/run.py --real --quick                   # shapes of Qwen3 and Llama, LoRA, tools
python examples/gpu/run.py --rollouts 8 --answer 16 --json

No network is used. Each measurement is a process of its own, which ends with its memory.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from alone import engine_tokens_per_second, update_tokens_per_second
from monitor import GpuMonitor, has_gpu, peak_bytes_of_processes
from peer import beside, reason_to_leave_out
from sizes import REAL, SIZES, build, count

__all__ = ["measure", "table"]

GROUP: Final = 8
ALONE: Final = "AGL_GPU_EXAMPLE_ALONE"  # set in the process of one measurement
LARGE: Final = 5e8  # parameters from which activations are computed again
WARM_UP: Final = 1  # first steps, which compile and allocate, and are not measured
DELTAS: Final = ("logprob_delta_mean", "logprob_delta_p99", "logprob_delta")
"""Columns of ``metrics.csv``: mean, 99th percentile and largest difference of a step's tokens."""

TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}


def make_agent(prompt: int, turns: int, sampled: list[int]) -> Any:
    """Return an agent that calls the model so many times, with a prompt of so many tokens.

    Each further turn sends the answer back with a tool's result; a random model calls no tool.

    Args:
        prompt: Tokens of the first prompt.
        turns: Calls of a rollout.
        sampled: Gets the number of tokens of each answer.
    """
    from openai import OpenAI

    import agl_core as agl

    text = "x" * (prompt - 3)  # the template adds three tokens
    options: Any = {"tools": [TOOL]} if turns > 1 else {}
    # One for all rollouts: to make one takes 16 ms of CPU time.
    client = OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=600)

    @agl.rollout
    def call(task: int, llm: agl.LLM) -> float:
        said = ""
        messages: Any = [{"role": "user", "content": text}]
        here = client.with_options(base_url=llm.endpoint)  # each attempt has its own URL
        for turn in range(turns):
            answer = here.chat.completions.create(model=llm.model, messages=messages, **options)
            said = answer.choices[0].message.content or ""
            sampled.append(answer.usage.completion_tokens)
            messages += [
                {"role": "assistant", "content": said},
                {"role": "tool", "content": f"result {turn}", "tool_call_id": f"call-{turn}"},
            ]
        return len(set(said)) / max(len(said), 1)  # it only has to differ within a group

    return call


def measure(options: argparse.Namespace, size: str, server: str) -> dict[str, Any]:
    """Train some steps; return the figures of those after the first."""
    import agl_core as agl
    from agl_algo_grpo import GRPO, LoRAConfig

    gpu = has_gpu()
    # A further turn adds the answer, which may be tokenised differently, and a tool's result.
    length = options.prompt + options.answer + (options.turns - 1) * (8 * options.answer + 64)
    large = count(size) > LARGE
    sampled_at: list[int] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = build(folder / size, size, length=length, device="cuda" if gpu else "cpu")
        algorithm = GRPO(
            model=model,
            steps=WARM_UP + options.steps,
            tasks_per_step=options.rollouts // GROUP,
            group_size=GROUP,
            max_tokens=options.answer,
            micro_batch_tokens=options.micro_batch_tokens,
            gradient_checkpointing=large,
            lora=LoRAConfig(r=options.lora) if options.lora else None,
            overlap=options.overlap,
            server=server_options(server, options, length),
            output_dir=str(folder / "run"),
            checkpoint_every=10_000,
        )
        trainer = agl.Trainer(
            algorithm=algorithm,
            adapter="trajectory",
            strategy="shm",
            n_runners=options.rollouts,
        )
        monitor = stack.enter_context(GpuMonitor()) if gpu else None
        agent = make_agent(options.prompt, options.turns, sampled_at)
        trainer.fit(agent, list(range(options.rollouts // GROUP)))
        metrics = folder / "run" / "metrics.csv"
        ended = metrics.stat().st_mtime  # it is written at the end of each step
        with metrics.open(newline="") as file:
            steps = list(csv.DictReader(file))
        rows = steps[WARM_UP:]
        alone = {
            "engine_alone": engine_tokens_per_second(
                model, sequences=options.rollouts, prompt=options.prompt, answer=options.answer
            ),
            "update_alone": update_tokens_per_second(
                model,
                row=options.prompt + options.answer,
                rows=max(1, options.micro_batch_tokens // (options.prompt + options.answer) // 8),
                checkpointing=large,
            ),
        }

    def total(column: str) -> float:
        return sum(float(row[column]) for row in rows)

    seconds = total("seconds")
    # All steps sample alike; with overlap, some of it before the step that trains on it.
    sampled = sum(sampled_at) * len(rows) / (WARM_UP + options.steps)
    result: dict[str, Any] = {
        "parameters": count(size),
        "size": size,
        "server": server,
        "dtype": "bfloat16" if gpu else "float32",
        "rollouts_per_second": total("rollouts") / total("rollout_seconds"),
        "sampled_tokens_per_second": sampled / total("rollout_seconds"),
        "trained_tokens_per_second": total("tokens") / total("train_seconds"),
        "publish_seconds": total("publish_seconds") / len(rows),
        "step_seconds": seconds / len(rows),
        **logprob_deltas(steps),
        "sampled_tokens": sampled / len(rows),
        "trained_tokens": total("tokens") / len(rows),
        "rollout_seconds": total("rollout_seconds") / len(rows),
        "train_seconds": total("train_seconds") / len(rows),
        **alone,
        "gpu_busy": None,
        "peak_bytes": peak_bytes_of_processes(),
    }
    if monitor is not None:
        result |= {
            "gpu_busy": monitor.busy_share(ended - seconds),
            "peak_bytes": monitor.peak_bytes(),
        }
    return result


def logprob_deltas(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Return how log-probabilities of server and trainer differ, over the steps that say it.

    The mean is that of the steps; 99th percentile and largest difference are those of the worst
    step. With ``overlap`` only the first step has rows of the current weights; the others say NaN.

    Args:
        rows: Rows of ``metrics.csv``, of all steps: warming up changes no value.
    """
    known = [row for row in rows if not math.isnan(float(row["logprob_delta"]))]
    if not known:
        return dict.fromkeys(DELTAS, math.nan)
    found = {name: [float(row[name]) for row in known] for name in DELTAS}
    mean, p99, largest = DELTAS
    return {mean: fmean(found[mean]), p99: max(found[p99]), largest: max(found[largest])}


def server_options(server: str, options: argparse.Namespace, length: int) -> dict[str, Any]:
    """Return the table of an LLM server that holds all rollouts of a step at once."""
    if server == "hf":
        return {"type": "hf", "max_batch_size": options.rollouts}
    return {
        "type": "vllm",
        "python": options.vllm_python,
        "args": {
            "max_model_len": length,
            "max_num_seqs": options.rollouts,
            "gpu_memory_utilization": 0.4,
        },
    }


# -- the table -------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    head = (
        *("parameters", "server", "type", "sampled tokens/s", "trained tokens/s", "step"),
        *("new weights", "GPU busy", "memory"),
        "log-probabilities differ by: mean / 99 % / largest",
    )
    lines = [head, ("---",) * len(head), *map(cells, results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def limits(results: list[dict[str, Any]]) -> str:
    """Return where the time of a step goes, beside what engine and update need alone."""
    lines = []
    for result in results:
        engine = result["sampled_tokens"] / result["engine_alone"]
        update = result["trained_tokens"] / result["update_alone"]
        rest = result["step_seconds"] - result["rollout_seconds"] - result["train_seconds"]
        lines.append(
            f"{result['size']}, {result['server']}: step {result['step_seconds']:.2f} s = rollouts "
            f"{result['rollout_seconds']:.2f} s (engine alone {engine:.2f} s, "
            f"{result['engine_alone']:,.0f} tokens/s) + update {result['train_seconds']:.2f} s "
            f"(forward and backward of separate rows {update:.2f} s, "
            f"{result['update_alone']:,.0f} tokens/s) "
            + (f"+ weights and waits {rest:.2f} s" if rest >= 0 else f"- overlap {-rest:.2f} s")
        )
    return "\n".join(lines)


def cells(result: dict[str, Any]) -> tuple[str, ...]:
    busy = result["gpu_busy"]
    return (
        f"{result['parameters'] / 1e6:,.1f}M",
        result["server"],
        result["dtype"],
        f"{result['sampled_tokens_per_second']:,.0f}",
        f"{result['trained_tokens_per_second']:,.0f}",
        f"{result['step_seconds']:.1f} s",
        f"{result['publish_seconds']:.2f} s",
        "-" if busy is None else f"{busy:.0%}",
        f"{result['peak_bytes'] / 2**30:.1f} GiB",
        " / ".join("-" if math.isnan(result[name]) else f"{result[name]:.1e}" for name in DELTAS),
    )


# -- the command -----------------------------------------------------------------------------------


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    gpu = has_gpu()
    parser = argparse.ArgumentParser(
        description="Measure GRPO on this machine.",
        epilog="Example: python examples/gpu/run.py --sizes 10M 1B --servers hf vllm",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help="default with a GPU: all round")
    parser.add_argument(
        "--real", action="store_true", help="published shapes; without a GPU a tiny one of theirs"
    )
    parser.add_argument("--quick", action="store_true", help="one measured step, fewer rollouts")
    parser.add_argument("--turns", type=int, help="calls of a rollout, with tools if several")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank")
    parser.add_argument("--overlap", type=int, choices=(0, 1), help="sample while training")
    parser.add_argument(
        "--servers", nargs="+", choices=("hf", "vllm"), help="default: hf, and vllm if installed"
    )
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--steps", type=int, help="measured steps, after one more")
    parser.add_argument("--rollouts", type=int, help="in a step")
    parser.add_argument("--prompt", type=int, help="tokens")
    parser.add_argument("--answer", type=int, help="tokens, at most")
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--json", action="store_true", help="print one JSON object per measurement")
    options = parser.parse_args(arguments)
    for name, value in defaults(options, gpu).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.turns < 1:
        parser.error("--turns must be 1 or more")
    if options.rollouts % GROUP or options.rollouts < GROUP:
        parser.error(f"--rollouts must be a multiple of {GROUP}")
    if options.prompt <= 3:
        parser.error("--prompt must be more than 3")
    if options.servers is None:
        options.servers = ["hf", "vllm"] if gpu and find_spec("vllm") else ["hf"]
    return options


def defaults(options: argparse.Namespace, gpu: bool) -> dict[str, Any]:
    """Return the values of options that were not given."""
    chosen: dict[str, Any] = {"turns": 1, "lora": 0, "overlap": 0, "steps": 3}
    chosen["sizes"] = [name for name in SIZES if name[0].isdigit()] if gpu else ["10M"]
    chosen |= {"rollouts": 128, "prompt": 256, "answer": 256} if gpu else {}
    chosen = {"rollouts": 16, "prompt": 32, "answer": 32, **chosen}
    if options.real:
        chosen |= {"turns": 3, "lora": 16, "overlap": 1}
        chosen["sizes"] = list(REAL) if gpu else ["qwen3-tiny"]
        if gpu:
            chosen |= {"prompt": 1024, "rollouts": 64}
    if options.quick:
        chosen |= {"steps": 1, "rollouts": 32 if gpu else GROUP, "sizes": chosen["sizes"][:1]}
    return chosen


def main() -> None:
    options = parse()
    if os.environ.get(ALONE):
        print(json.dumps(measure(options, options.sizes[0], options.servers[0])))
        return
    results: list[dict[str, Any]] = []
    failed = False
    for size in options.sizes:
        if why_not := reason_to_leave_out(options, size):
            peer = {"left_out": why_not}
        else:
            peer = run_alone(f"{size} with TRL", command_of_peer(options, size))
            failed |= peer is None
        for server in options.servers:
            command = [__file__, *sys.argv[1:], "--sizes", size, "--servers", server]
            result = run_alone(f"{size} with {server}", command)
            if result is None:
                failed = True
                continue
            results.append(result | {"peer": peer or {"left_out": "it failed"}})
            if options.json:
                print(json.dumps(results[-1]), flush=True)
    if results and not options.json:
        print(table(results))
        print(limits(results))
        print("\n".join(map(beside, results)))
    sys.exit(failed)


def command_of_peer(options: argparse.Namespace, size: str) -> list[str]:
    """Return the command that measures TRL on the same work."""
    given = {
        "size": size,
        "rollouts": options.rollouts,
        "group": GROUP,
        "prompt": options.prompt,
        "answer": options.answer,
        "steps": options.steps,
        "warm-up": WARM_UP,
        "micro-batch-tokens": options.micro_batch_tokens,
    }
    words = [f"--{name}={value}" for name, value in given.items()]
    if count(size) > LARGE:
        words.append("--gradient-checkpointing")
    return [str(Path(__file__).with_name("peer.py")), *words]


def run_alone(what: str, command: Sequence[str]) -> dict[str, Any] | None:
    """Run a measurement in a process of its own; return what it prints, or None if it failed.

    Args:
        what: What is measured.
        command: Arguments of Python.
    """
    print(f"measuring {what} ...", file=sys.stderr, flush=True)
    child = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, ALONE: "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        output, _ = child.communicate()
    finally:
        child.wait()  # after Ctrl+C it removes its model, which has up to 8 GB
    if child.returncode:
        print(f"{what} failed", file=sys.stderr)
        return None
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    main()
