"""Shared parts of the tests on a GPU: sizes, bars, sampling by the engine, a plain pass, memory."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from agl_server_hf.engine import Engine, Generation, Sampling

WAIT_SECONDS = 60.0
"""Longest wait for a sequence: a hang should fail its own test, long before the command's limit."""

MEAN_BAR = 0.005
"""Largest mean difference of a token's log-probabilities, between engine, trainer and a plain pass.
In bfloat16 itself they have an error of 0.008, as `plugins/agl_server_hf/README.md` measures
against float32."""


@dataclass(frozen=True)
class Work:
    """Sizes of the tests on a device.

    Attributes:
        device: PyTorch's name of it.
        size: Model, one of ``SIZES`` of ``examples/gpu/sizes.py``.
        sequences: Sequences that are sampled together.
        prompt: Tokens of the longest prompt.
        answer: Tokens of each answer.
        learning_steps: Steps of ``examples/rl_digits``.
        learning_gain: Least gain of its reward: the last three steps less the first.
    """

    device: str
    size: str
    sequences: int
    prompt: int
    answer: int
    learning_steps: int
    learning_gain: float

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt + self.answer

    def prompts(self, seed: int = 0) -> list[list[int]]:
        """Return prompts of several lengths; the first two are equal, as in a group."""
        generator = torch.Generator().manual_seed(seed)
        lengths = [self.prompt - number % 17 for number in range(self.sequences - 1)]
        drawn = [torch.randint(260, 2000, (n,), generator=generator).tolist() for n in lengths]
        return [drawn[0], *drawn]


class Bars:
    """Collects figures; :meth:`check` fails if one misses its bar. All are shown, whatever fails.

    Args:
        record: pytest's ``record_property``, which also crosses processes.
    """

    NAME: ClassVar = "bar"

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self._missed: list[str] = []
        self.checked = False

    def figure(self, what: str, value: str) -> None:
        """Show a figure without a bar."""
        self._record(self.NAME, [what, value, "", ""])

    def at_most(self, what: str, value: float, most: float, form: str = "{:.4g}") -> None:
        self._add(what, form.format(value), f"<= {form.format(most)}", value <= most)

    def at_least(self, what: str, value: float, least: float, form: str = "{:.4g}") -> None:
        self._add(what, form.format(value), f">= {form.format(least)}", value >= least)

    def check(self) -> None:
        self.checked = True
        assert not self._missed, "; ".join(self._missed)

    def _add(self, what: str, value: str, bar: str, holds: bool) -> None:
        self._record(self.NAME, [what, value, bar, "ok" if holds else "MISSED"])
        if not holds:
            self._missed.append(f"{what}: {value}, not {bar}")


# -- sampling --------------------------------------------------------------------------------------


def load(folder: Path, device: str) -> Any:
    """Return the model in bfloat16, with Transformers' own attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()


@contextmanager
def running(model: Any, work: Work) -> Iterator[Engine]:
    """Run an engine, which takes over the model."""
    engine = Engine(model, eos_ids=[], max_batch=work.sequences, max_length=work.length, seed=0)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def sample(
    engine: Engine, prompts: Sequence[Sequence[int]], wanted: Sequence[Sampling]
) -> list[Generation]:
    """Sample one batch, of which nothing is stored yet; return it when all sequences ended."""
    in_its_thread(engine, lambda: None)
    ended: queue.Queue[Any] = queue.Queue()
    sequences = [
        Generation(prompt, sampling, ended.put, stream=False)
        for prompt, sampling in zip(prompts, wanted, strict=True)
    ]
    engine.submit(*sequences)
    for _ in sequences:
        event = ended.get(timeout=WAIT_SECONDS)
        if isinstance(event, Exception):
            raise event
    return sequences


def in_its_thread(engine: Engine, do: Callable[[], object]) -> None:
    """Run a function in the engine's thread between two batches.

    The cache drops all earlier prompts, as after a change of the weights.
    """

    def order(model: Any) -> Any:
        do()
        return model

    engine.change(order).result(WAIT_SECONDS)


@torch.no_grad()
def plain_logprobs(model: Any, sequence: Generation) -> Tensor:
    """Return log-probabilities of all tokens for each token of an answer, float32 ``[T, V]``.

    They are those of one forward pass over the whole sequence, without a cache.
    """
    ids = torch.tensor([[*sequence.prompt, *sequence.token_ids]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(sequence.prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def said_logprobs(sequence: Generation, device: str) -> Tensor:
    """Return the log-probabilities that the engine reported, float32 ``[T]``."""
    return torch.tensor([token.logprob for token in sequence.tokens], device=device)


def chosen(logprobs: Tensor, sequence: Generation) -> Tensor:
    """Return those of the sampled tokens, ``[T]`` of ``[T, V]``."""
    ids = torch.tensor(sequence.token_ids, device=logprobs.device)
    return logprobs.gather(-1, ids[:, None])[:, 0]


# -- memory ----------------------------------------------------------------------------------------


class Peak:
    """The most bytes that PyTorch's allocator holds at once, beyond what it holds at the start.

    On a CPU it sees only the thread that starts and stops it, and no mapped memory, such as that
    of the engine's cache.

    Attributes:
        bytes: What :meth:`stop` found.
    """

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._before = 0
        self._profiler: Any = None
        self.bytes = 0

    def start(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.start()

    def stop(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self._before
            return
        self._profiler.stop()
        results: Any = self._profiler.profiler
        allocations = [
            event
            for event in _all_events(results.kineto_results.experimental_event_tree())
            if hasattr(event.extra_fields, "alloc_size")
        ]
        allocations.sort(key=lambda event: event.start_time_ns)
        held = 0
        for event in allocations:
            held += event.extra_fields.alloc_size
            self.bytes = max(self.bytes, held)


def peak_bytes(device: str, do: Callable[[], object]) -> int:
    """Return the peak of a function that works in this thread."""
    peak = Peak(device)
    peak.start()
    do()
    peak.stop()
    return peak.bytes


def _all_events(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _all_events(event.children)
