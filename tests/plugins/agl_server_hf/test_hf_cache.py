"""The cache in blocks: it says what a plain forward pass says, once, in memory that is constant."""

from __future__ import annotations

import gc
import os
import queue
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
)

from agl_core.errors import LLMServerError
from agl_server_hf import budget
from agl_server_hf.attention import BlockStep
from agl_server_hf.cache import BlockCache
from agl_server_hf.engine import Engine, Generation, Sampling, Token
from agl_server_hf.padded import PaddedCache

SECONDS = 240
VOCABULARY = 50
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,  # the attention of a model with small weights is nearly even
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
WIDE: dict[str, Any] = {"initializer_range": 0.4}
KINDS: dict[str, Any] = {"layer_types": ["chunked_attention", "full_attention"]}
MODELS: dict[str, Callable[[], Any]] = {
    "grouped heads": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
    "window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=20)),
    "softcap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=8, sliding_window=24, attn_logit_softcapping=5.0)
    ),
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(**GPT2, initializer_range=0.4, bos_token_id=None, eos_token_id=None)
    ),
    "all logits returned": lambda: WhisperForCausalLM(
        WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            max_target_positions=512,
            init_std=0.4,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
}
PADDED: dict[str, Callable[[], Any]] = {
    "attention of its own": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, **WIDE)
    ),
    "unknown kind of layer": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **SHAPE, intermediate_size_mlp=48, head_dim=8, num_local_experts=2, **KINDS
        )
    ),
    "sinks": lambda: GptOssForCausalLM(
        GptOssConfig(**SHAPE, head_dim=8, num_local_experts=4, sliding_window=24)
    ),
    "two attentions per head": lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SHAPE)),
}


def make(name: str) -> Any:
    torch.manual_seed(0)
    return (MODELS | PADDED)[name]().eval()


@contextmanager
def running(model: Any, **options: Any) -> Iterator[Engine]:
    engine = Engine(model, eos_ids=[], seed=0, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def run(engine: Engine, prompts: Sequence[list[int]], **sampling: Any) -> list[Generation]:
    """Sample one sequence per prompt, all of them submitted at once."""
    ended: queue.Queue[Token | Exception] = queue.Queue()
    sequences = [
        Generation(prompt, Sampling(**sampling), ended.put, stream=False) for prompt in prompts
    ]
    engine.submit(*sequences)
    for _ in sequences:
        token = ended.get(timeout=SECONDS)
        if isinstance(token, Exception):
            raise token
    return sequences


def worst(reference: Any, sequences: Sequence[Generation]) -> float:
    """Return the largest difference of a log-probability from that of a plain forward pass."""
    largest = 0.0
    for one in sequences:
        ids = torch.tensor([[*one.prompt, *one.token_ids]])
        with torch.no_grad():
            logprobs = reference(ids).logits[0].double().log_softmax(-1)
        said = torch.tensor([token.logprob for token in one.tokens], dtype=torch.double)
        true = logprobs[len(one.prompt) - 1 : -1].gather(-1, torch.tensor([one.token_ids]).T)[:, 0]
        largest = max(largest, float((said - true).abs().max()))
    return largest


def tensor_bytes() -> int:
    """Return the bytes of all tensors that are alive; it keeps none of them alive."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return sum(one.untyped_storage().nbytes() for one in tensors)


@pytest.mark.parametrize("name", [*MODELS, *PADDED])
def test_logprobs_are_those_of_a_plain_forward_pass(name: str):
    """With shared beginnings, equal prompts, a second turn, and a cache that is too small."""
    chance = random.Random(1)
    common = [chance.randrange(VOCABULARY) for _ in range(70)]
    prompts = [
        [*common[: chance.choice([10, 33, 64, 70])], *[chance.randrange(VOCABULARY)] * (i % 20)]
        for i in range(12)
    ]
    with running(make(name), max_batch=6, cache_tokens=16 * 32) as engine:
        assert isinstance(engine._cache, PaddedCache) == (name in PADDED)
        first = run(engine, [*prompts, common, common, common], max_tokens=50)
        second = run(engine, [[*one.prompt, *one.token_ids, 3] for one in first[:4]], max_tokens=9)
    assert worst(make(name), [*first, *second]) < 1e-4


def test_what_prompts_share_is_run_once():
    chance = random.Random(2)
    prompt = [chance.randrange(VOCABULARY) for _ in range(200)]
    model = make("grouped heads")
    with running(model, max_batch=16) as engine:
        run(engine, [[1]], max_tokens=1)
        tokens: list[int] = []

        def count(_: Any, args: Any, kwargs: Any) -> None:
            tokens.append(kwargs["input_ids"].numel())

        hook = model.register_forward_pre_hook(count, with_kwargs=True)
        group = run(engine, [prompt] * 8, max_tokens=40)
        assert sum(tokens) == len(prompt) + 8 * 39
        tokens.clear()
        history = [*prompt, *group[0].token_ids]
        run(engine, [[*history, 1, 2, 3]], max_tokens=1)
        assert sum(tokens) <= 32 + 3
        # Other weights must not use what the old ones have stored.
        tokens.clear()
        engine.change(lambda same: same).result(timeout=SECONDS)
        run(engine, [prompt], max_tokens=1)
        assert sum(tokens) == len(prompt)
        hook.remove()


def test_a_long_prompt_does_not_hold_up_an_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agl_server_hf.engine.PROMPT_TOKENS", 16)
    events: queue.Queue[str] = queue.Queue()
    with running(make("grouped heads"), max_batch=4) as engine:
        short = Generation([1], Sampling(max_tokens=300), lambda _: events.put("short"))
        engine.submit(short)
        events.get(timeout=SECONDS)
        long = Generation([2] * 160, Sampling(max_tokens=1), lambda _: events.put("long"))
        engine.submit(long)
        seen = [events.get(timeout=SECONDS)]
        while seen[-1] != "long":
            seen.append(events.get(timeout=SECONDS))
        engine.cancel(short)
    assert seen.count("short") >= 9  # the prompt takes ten steps


def test_an_answer_that_nobody_streams_is_emitted_once_and_each_step_reported_once():
    steps: list[int] = []
    emitted: list[Token | Exception] = []
    done: queue.Queue[None] = queue.Queue()

    def emit(token: Token | Exception) -> None:
        emitted.append(token)

    def after_step() -> None:
        steps.append(len(emitted))
        if len(emitted) == 8 + 30:
            done.put(None)

    with running(make("grouped heads"), max_batch=16, after_step=after_step) as engine:
        whole = [Generation([1, n], Sampling(max_tokens=30), emit, stream=False) for n in range(8)]
        engine.submit(*whole, Generation([2], Sampling(max_tokens=30), emit))
        done.get(timeout=SECONDS)
    assert [len(one.tokens) for one in whole] == [30] * 8
    assert steps == [*range(1, 30), 38]


def test_a_sequence_alone_is_read_in_place_whatever_ran_before(monkeypatch: pytest.MonkeyPatch):
    for_many: list[int] = []
    decode = BlockStep._decode

    def counted(self: BlockStep, *arguments: Any) -> torch.Tensor:
        for_many.append(1)
        return decode(self, *arguments)

    monkeypatch.setattr(BlockStep, "_decode", counted)
    chance = random.Random(5)
    with running(make("grouped heads"), max_batch=4, cache_tokens=16 * 32) as engine:
        said: list[Generation] = []
        for length in (40, 70, 100):  # their blocks are given back in another order
            prompts = [[chance.randrange(VOCABULARY) for _ in range(length)] for _ in range(3)]
            said += run(engine, prompts, max_tokens=40)
        for_many.clear()
        for _ in range(3):  # each goes on where the one before ended
            ids = [*said[-1].prompt, *said[-1].token_ids, 3, 4]
            said += run(engine, [ids], max_tokens=70)
        assert not for_many
    assert worst(make("grouped heads"), said) < 1e-4


def places_of(engine: Engine) -> list[tuple[int, int]]:
    """Return the addresses of the cache's tensors."""
    assert isinstance(engine._cache, BlockCache)
    return [(part.keys.data_ptr(), part.values.data_ptr()) for part in engine._cache._layers]


def test_memory_is_constant_over_2000_steps():
    """Sequences of all lengths come and go; the cache stays where it is, and no tensor is left."""
    chance = random.Random(3)
    with running(make("grouped heads"), max_batch=8, cache_tokens=64 * 32) as engine:
        places = places_of(engine)
        held: list[int] = []
        for _ in range(8):
            prompts = [
                [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 90))]
                for _ in range(16)
            ]
            run(engine, prompts, max_tokens=125)  # 250 steps in two halves
            # In the engine's thread, which has nothing in hand between its batches.
            engine.change(lambda same: (held.append(tensor_bytes()), same)[1]).result(SECONDS)
        assert places_of(engine) == places
    assert max(held[2:]) <= max(held[:2]) * 1.01


def test_the_memory_of_a_cpu_is_used_as_the_cache_fills():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    part = torch.ones((1, 4, 64))
    before = resident()
    cache = BlockCache({0: (part, part)}, 2**19)
    layer = cache._layers[0]
    assert layer.keys.dtype == part.dtype and not layer.keys[:, ::1000].any()
    assert layer.keys.nbytes == 2**29
    assert resident() - before < 2**26


def test_a_container_has_the_memory_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    limit, none = tmp_path / "memory.max", tmp_path / "unlimited"
    limit.write_text(f"{2**20}\n")
    none.write_text("max\n")
    whole = budget._memory(torch.device("cpu"))
    monkeypatch.setattr(budget, "_LIMITS", [str(tmp_path / "missing"), str(none)])
    assert budget._memory(torch.device("cpu")) >= whole
    monkeypatch.setattr(budget, "_LIMITS", [str(none), str(limit)])
    assert budget._memory(torch.device("cpu")) == 2**20


def test_a_sequence_that_never_fits_fails_and_others_go_on():
    with running(make("grouped heads"), max_batch=4, cache_tokens=64) as engine:
        with pytest.raises(RuntimeError, match="cache of 64 tokens"):
            run(engine, [[1] * 70], max_tokens=1)
        with pytest.raises(RuntimeError, match="cache of 64 tokens"):
            run(engine, [[1] * 20], max_tokens=100)
        assert len(run(engine, [[1] * 20], max_tokens=30)[0].token_ids) == 30


def test_sequences_that_fit_one_by_one_all_end_in_a_full_cache():
    with running(make("grouped heads"), max_batch=4, cache_tokens=5 * 32) as engine:
        sequences = run(engine, [[1] * 30, [2] * 30, [3] * 70], max_tokens=80)
        assert engine._cache._pool.available == 5
    assert [len(one.token_ids) for one in sequences] == [80, 80, 80]
    assert worst(make("grouped heads"), sequences) < 1e-4


def test_a_model_without_a_key_value_cache_is_refused():
    model = MambaForCausalLM(
        MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=1)
    )
    with pytest.raises(LLMServerError, match=r"cannot run MambaForCausalLM.*use vLLM"):
        Engine(model, eos_ids=[])
    with pytest.raises(LLMServerError, match=r"cache of 5 tokens .* set cache_tokens"):
        Engine(make("grouped heads"), eos_ids=[], cache_tokens=5)
