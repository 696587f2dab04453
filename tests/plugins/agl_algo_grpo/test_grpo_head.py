"""Chunks of logits: values and gradients equal the plain formula; the memory does not grow."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from agl_algo_grpo.head import Head
from agl_core.errors import ConfigError

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

_spec = importlib.util.spec_from_file_location(
    "tiny_causal", Path(__file__).with_name("tiny_causal.py")
)
assert _spec is not None
assert _spec.loader is not None
tiny: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)
ARCHITECTURES, make_causal = tiny.ARCHITECTURES, tiny.make_causal

MODELS = {name: make_causal(name) for name in ARCHITECTURES}


def plain(
    model: Any, ids: Tensor, temperature: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, those at temperature 1, and entropies, without the first token."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(input_ids=ids).logits[:, :-1].float()
    spread = (logits / temperature).log_softmax(-1)
    raw = logits.log_softmax(-1)
    chosen = ids[:, 1:, None]
    return (
        spread.gather(-1, chosen).flatten(),
        raw.gather(-1, chosen).flatten(),
        -(spread.exp() * spread).sum(-1).flatten(),
    )


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare(
    model: Any,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    chunk: int = 5,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> Head:
    """Assert that a head equals the plain formula on random tokens; gradients relative to 1."""
    head = Head(model, dtype)
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 90, (2, 9), generator=rng)
    sources = torch.arange(18).view(2, 9)[:, :-1].flatten()
    factors = torch.randn(16, generator=rng) / 16  # as of a loss: the weights of its tokens

    logprobs, raw, entropy = plain(model, ids, temperature, dtype)
    expected = gradients(model, (logprobs * factors).sum())
    values = head.values(
        head.hidden_states({"input_ids": ids}).flatten(0, 1),
        sources,
        ids[:, 1:].flatten(),
        chunk_tokens=chunk,
        temperature=temperature,
    )
    found = gradients(model, (values.logprobs * factors).sum())
    near: dict[str, Any] = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(values.logprobs, logprobs, **near)
    torch.testing.assert_close(values.raw, raw, **near)
    torch.testing.assert_close(values.entropy, entropy, **near)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, **near)
    return head


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    chunk=st.integers(1, 20),
)
def test_values_and_gradients_equal_the_plain_formula(
    name: str, seed: int, temperature: float, chunk: int
):
    head = compare(MODELS[name], seed=seed, temperature=temperature, chunk=chunk)
    assert head.is_linear


@pytest.mark.parametrize("name", ["qwen2", "qwen2-untied", "gemma2"])
def test_bfloat16_differs_by_its_rounding_only(name: str):
    """The plain formula itself changes by 2^-8 of a value with the order of its sums."""
    compare(MODELS[name], dtype=torch.bfloat16, tolerance=2e-2)


@pytest.mark.parametrize("name", ["qwen2", "qwen2-untied", "gemma2"])
def test_gradients_in_bfloat16_are_as_near_to_the_exact_ones_as_those_of_the_plain_formula(
    name: str,
):
    model = MODELS[name]
    ids = torch.randint(3, 90, (4, 40), generator=torch.Generator().manual_seed(1))
    sources = torch.arange(160).view(4, 40)[:, :-1].flatten()
    head = Head(model, torch.bfloat16)
    hidden = head.hidden_states({"input_ids": ids}).detach().flatten(0, 1)
    targets = ids[:, 1:].flatten()
    weight = model.get_output_embeddings().weight
    cap = head.cap

    def of_weight(logprobs: Callable[[], Tensor]) -> Tensor:
        model.zero_grad()
        (logprobs().sum() / 100).backward()
        assert weight.grad is not None
        return weight.grad.clone()

    def formula(dtype: torch.dtype, calculated: torch.dtype) -> Tensor:
        rows = hidden[sources].bfloat16().to(dtype)
        logits = (rows @ weight.bfloat16().to(dtype).T).to(calculated)
        if cap:
            logits = cap * (logits / cap).tanh()
        return logits.log_softmax(-1).gather(-1, targets[:, None])

    exact = of_weight(lambda: formula(torch.float64, torch.float64))
    usual = of_weight(lambda: formula(torch.bfloat16, torch.float32))
    mine = of_weight(lambda: head.values(hidden, sources, targets, chunk_tokens=7).logprobs)
    # Each of 23 chunks is rounded, but their sum is not.
    assert (mine - exact).norm() <= 1.2 * (usual - exact).norm()


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning")
@pytest.mark.parametrize("modules", ["all-linear", ["q_proj", "lm_head"]])
@pytest.mark.parametrize("name", ["qwen2-untied", "gemma2"])
def test_models_with_lora_equal_the_plain_formula(name: str, modules: Any):
    options = peft.LoraConfig(r=4, target_modules=modules, task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(make_causal(name), options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # PEFT starts with 0, which has no effect
                parameter.normal_(0, 0.1)
    head = compare(model)
    assert head.is_linear == (modules == "all-linear")
    with model.disable_adapter(), torch.no_grad():
        ids = torch.tensor([[5, 6, 7]])
        expected = plain(model, ids, 1.0, torch.float32)[0]
        found = head.values(
            head.hidden_states({"input_ids": ids})[0], torch.tensor([0, 1]), ids[0, 1:],
            chunk_tokens=1,
        )  # fmt: skip
    torch.testing.assert_close(found.logprobs, expected, atol=1e-5, rtol=1e-5)


def test_a_head_that_is_not_known_is_computed_by_the_models_own_code():
    model = make_causal("qwen2")
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        outputs.logits = 5 * torch.tanh(outputs.logits / 5)
        return outputs

    model.forward = forward
    assert not compare(model).is_linear


def test_logits_that_depend_on_more_than_the_hidden_states_are_refused():
    model = make_causal("qwen2")
    original = model.forward

    def forward(*args: Any, input_ids: Tensor, **kwargs: Any) -> Any:
        outputs = original(*args, input_ids=input_ids, **kwargs)
        outputs.logits = outputs.logits + input_ids.sum()
        return outputs

    model.forward = forward
    with pytest.raises(ConfigError, match="Qwen2ForCausalLM cannot be trained"):
        Head(model, torch.float32)


def test_words_that_cannot_be_sampled_do_not_spoil_the_entropy():
    model = make_causal("phi")
    with torch.no_grad():
        model.lm_head.bias[90:] = -torch.inf  # words beyond the tokenizer's
    head = Head(MODELS["phi"], torch.float32)
    head.matrix = model.lm_head
    values = head.values(torch.randn(4, 32), torch.arange(4), torch.arange(4), chunk_tokens=2)
    assert values.entropy.isfinite().all()
    assert (values.entropy > 0).all()


# -- memory ----------------------------------------------------------------------------------------


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch's allocator held at once during ``work``."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()

    def walk(events: Any) -> Iterator[Any]:
        for event in events:
            yield event
            yield from walk(event.children)

    results: Any = profiler.profiler
    events = [
        event
        for event in walk(results.kineto_results.experimental_event_tree())
        if hasattr(event.extra_fields, "alloc_size")
    ]
    events.sort(key=lambda event: event.start_time_ns)
    held = highest = 0
    for event in events:
        held += event.extra_fields.alloc_size
        highest = max(highest, held)
    return highest


def added_chunks(
    name: str, tokens: int, words: int, dtype: torch.dtype, *, model_too: bool
) -> float:
    """Return the loss's memory in chunks, beyond that of a dummy loss on the hidden states.

    Args:
        name: Name of the model.
        tokens: Tokens in the forward pass.
        words: Size of the vocabulary.
        dtype: Type of the computation.
        model_too: Whether the peak is that of the model's passes, too; they hide what is smaller.
    """
    chunk = 128
    model = make_causal(name, vocab_size=words)
    head = Head(model, dtype)
    rng = random.Random(0)
    ids = torch.tensor([[rng.randrange(words) for _ in range(tokens)]])
    sources, targets = torch.arange(tokens - 1), ids[0, 1:]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # as after the first micro-batch
    given = head.hidden_states({"input_ids": ids}).flatten(0, 1).detach()

    def hidden() -> Tensor:
        if not model_too:
            return given.detach().requires_grad_()
        return head.hidden_states({"input_ids": ids}).flatten(0, 1)

    def loss() -> None:
        values = head.values(hidden(), sources, targets, chunk_tokens=chunk, temperature=0.7)
        (values.logprobs / tokens).sum().backward()

    def dummy() -> None:
        hidden().square().mean().backward()

    return (peak(loss) - peak(dummy)) / (chunk * words * 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2", "qwen2-untied", "gemma2"])
def test_the_loss_needs_at_most_one_and_a_half_chunks_whatever_the_sizes(
    name: str, dtype: torch.dtype
):
    for model_too in (True, False):
        # Large, so that what does not depend on the vocabulary counts little.
        sizes = [(512, 16_000), (1024, 16_000), (512, 32_000), (1024, 32_000)]
        found = [added_chunks(name, *size, dtype, model_too=model_too) for size in sizes]
        print(name, dtype, [round(value, 3) for value in found])
        assert max(found) <= 1.5
        if not model_too:
            assert max(found) - min(found) <= 0.05
