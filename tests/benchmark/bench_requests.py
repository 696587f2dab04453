"""Measures the way from an agent's call to the server's batch and back, without the model.

128 agents in one runner process each make one call of 256 tokens, through the proxy, to the
application of agl-server-hf, whose engine returns tokens at once. Each process's CPU time is
counted::

    .envs/agl_algo_grpo/bin/python tests/benchmark/bench_requests.py

``AGL_BENCH_BESIDE`` names another checkout, which is measured in turn with this one, in its own
``.envs/agl_algo_grpo`` if it has one. With
``--engine`` the real engine samples from the model of ``examples/rl_digits``: the sizes of its
first ten batches are those of a training step.
"""

# pyright: reportMissingImports=false
# The models' modules are in folders of examples.

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.benchmark

HERE: Final = Path(__file__).resolve().parents[2]
AGENTS, TOKENS = 128, 256
ROUNDS: Final = 5
"""Number of measured batches of rollouts per checkout, after a first one."""
PROMPT: Final = "Which shelf has the digit? " * 8


# -- the server's process --------------------------------------------------------------------------


class Instant:
    """An engine whose steps take no time: each adds a token to each sequence."""

    def __init__(self) -> None:
        self.after_step: Any = None
        self.sizes: list[int] = []
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, *generations: Any) -> None:
        with self._changed:
            self._waiting.extend(generations)
            self._changed.notify()

    def cancel(self, generation: Any) -> None:
        generation.cancelled = True

    def _run(self) -> None:
        running: list[Any] = []
        while True:
            with self._changed:
                while not running and not self._waiting:
                    self._changed.wait()
                running += self._waiting
                self._waiting.clear()
            self.sizes.append(len(running))
            going = [one for one in running if self._add(one)]
            if self.after_step is not None and len(going) < len(running):
                self.after_step()
            running = going

    def _add(self, generation: Any) -> bool:
        """Add a token; return whether the sequence goes on."""
        from agl_server_hf.engine import Token

        number = len(generation.token_ids)
        ends = number + 1 == generation.sampling.max_tokens
        token = Token(5 + number % 250, -1.5, (), "length" if ends else None)
        generation.token_ids.append(token.id)
        whole = hasattr(generation, "stream")  # an older engine emits every token
        if whole:
            generation.tokens.append(token)
        if not whole or generation.stream or ends:
            generation.emit(token)
        return not ends


def serve(folder: str, real: bool) -> None:
    """Serve; write the port, then CPU seconds and the sizes of the last batches for each line."""
    import torch
    import uvicorn
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agl_server_hf import worker
    from agl_server_hf.app import build_app
    from agl_serving import bind_socket

    torch.set_num_threads(1)
    engine: Any = Instant()
    sizes = engine.sizes
    if real:
        from agl_server_hf.engine import Engine

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        engine = Engine(model, eos_ids=[], max_batch=AGENTS, seed=0)
        step = engine._step

        def counted() -> None:
            step()
            sizes.append(len(engine._running if hasattr(engine, "_running") else engine._active))

        engine._step = counted
        engine.start()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    app = build_app(engine, tokenizer, model="policy", max_length=4096)
    getattr(worker, "freeze", int)()  # which an older server does not do
    listener = bind_socket("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    print(listener.getsockname()[1], flush=True)

    def report() -> None:
        for _ in sys.stdin:
            print(json.dumps([time.process_time(), sizes[:10]]), flush=True)
            sizes.clear()
        os._exit(0)

    threading.Thread(target=report, daemon=True).start()
    asyncio.run(uvicorn.Server(config).serve([listener]))


# -- the runner's process --------------------------------------------------------------------------


@functools.cache
def client() -> Any:
    from openai import OpenAI

    return OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=120, max_retries=0)


def roll(folder: str, real: bool) -> None:
    """Run a batch of rollouts for each line of the input; write what each has cost."""
    import agl_core as agl
    from agl_algorithm_kit import run_batch
    from agl_proxy_direct import DirectProxy

    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", folder, *(["--engine"] if real else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    to_server, from_server = server.stdin, server.stdout
    port = int(from_server.readline())

    def server_state() -> tuple[float, list[int]]:
        to_server.write("\n")
        to_server.flush()
        seconds, sizes = json.loads(from_server.readline())
        return seconds, sizes

    @agl.rollout
    def agent(task: int, llm: agl.LLM) -> float:
        completion = (
            client()
            .with_options(base_url=llm.endpoint)
            .chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": f"{PROMPT}{task}"}],
                max_tokens=TOKENS,
            )
        )
        return float(completion.usage.completion_tokens == TOKENS)

    class Measured(agl.Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store: Any = self.get_store()
            proxy = DirectProxy(store=store, launch_mode="thread")
            parameters = {
                "model": "hosted_vllm/policy",
                "api_base": f"http://127.0.0.1:{port}/v1",
            }
            proxy.update_model_list([{"model_name": "policy", "litellm_params": parameters}])
            await proxy.start()
            number = 0
            while await asyncio.to_thread(sys.stdin.readline):
                number += 1
                before, _ = server_state()
                began = time.process_time()
                outcome = await run_batch(
                    store,
                    list(range(AGENTS)),
                    resources={"llm": proxy.as_resource(model="policy")},
                    mode="train",
                    name=f"batch-{number}",
                )
                mine = time.process_time() - began
                after, sizes = server_state()
                rewards = [one.reward for one in outcome]
                assert rewards == [1.0] * AGENTS, rewards
                print(json.dumps({"runner": mine, "server": after - before, "sizes": sizes}))
                sys.stdout.flush()
            await proxy.stop()

    agl.Trainer(
        algorithm=Measured(),
        tracer={"type": "otel", "model_calls": "direct"},
        strategy="shm",
        concurrency=AGENTS,
    ).fit(agent)
    to_server.close()
    server.wait()


# -- the comparison --------------------------------------------------------------------------------


def start(folder: str, checkout: Path, real: bool) -> subprocess.Popen[str]:
    sources = [checkout, *(path.parent for path in checkout.glob("plugins/*/src/*"))]
    # Entry points and requirements of another commit are those of its own environment.
    own = checkout / ".envs/agl_algo_grpo/bin/python"
    python = own if checkout != HERE and own.exists() else sys.executable
    return subprocess.Popen(
        [python, __file__, "--roll", folder, *(["--engine"] if real else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))},
    )


def measure(rounds: int = ROUNDS, real: bool = False) -> list[str]:
    beside = os.environ.get("AGL_BENCH_BESIDE")
    checkouts = {"now": HERE, **({"before": Path(beside)} if beside else {})}
    costs: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subprocess.run([sys.executable, __file__, "--build", folder], check=True)
        processes = {
            name: stack.enter_context(start(folder, checkout, real))
            for name, checkout in checkouts.items()
        }
        for process in processes.values():
            stack.callback(process.kill)
        for _ in range(rounds + 1):
            for name, process in processes.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                costs[name].append(json.loads(process.stdout.readline()))
    lines = [f"{'CPU ms per rollout':20}{'all':>8}{'runner':>8}{'server':>8}   first ten batches"]
    for name, all_rounds in costs.items():
        runner, server = (
            1000 * statistics.median(one[part] for one in all_rounds[1:]) / AGENTS
            for part in ("runner", "server")
        )
        sizes = " ".join(map(str, all_rounds[-1]["sizes"]))
        lines.append(f"{name:20}{runner + server:8.2f}{runner:8.2f}{server:8.2f}   {sizes}")
    if beside:
        ratio = statistics.median(
            sum(now[part] for part in ("runner", "server"))
            / sum(before[part] for part in ("runner", "server"))
            for now, before in zip(costs["now"][1:], costs["before"][1:], strict=True)
        )
        lines.append(f"now/before {ratio:.2f}")
    return lines


def build_model(folder: str) -> None:
    sys.path.insert(0, str(HERE / "examples" / "rl_digits"))
    from make_model import make_model

    make_model(Path(folder), warmup_steps=0)


def test_request_path(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the environment of agl-algo-grpo")
    with capsys.disabled():
        print("\n" + "\n".join(measure()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engine", action="store_true", help="sample from a model")
    for part in ("build", "serve", "roll"):
        parser.add_argument(f"--{part}", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.build:
        build_model(options.build)
    elif options.serve:
        serve(options.serve, options.engine)
    elif options.roll:
        roll(options.roll, options.engine)
    else:
        print("\n".join(measure(options.rounds, options.engine)))


if __name__ == "__main__":
    main()
