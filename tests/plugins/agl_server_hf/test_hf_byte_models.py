"""The models with a token per byte, which examples and benchmarks train."""

from __future__ import annotations

import torch

from agl_tiny_model import build_byte_llama, build_byte_tokenizer

MESSAGES = [
    {"role": "user", "content": "Größe? <think>"},
    {"role": "assistant", "content": '7 \n"x"'},
    {"role": "assistant", "content": None},
]


def test_text_and_tokens_are_one_to_one():
    tokenizer = build_byte_tokenizer(length=64)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert text == (
        '<|user|>Größe? <think><|end|><|assistant|>7 \n"x"<|end|><|assistant|><|end|><|assistant|>'
    )
    assert tokenizer.decode(ids) == text
    letters = "".join(message["content"] or "" for message in MESSAGES).encode()
    assert len(ids) == len(letters) + 7  # a token for each byte, and those of the template
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == "<|assistant|>"


def test_a_part_is_one_token_that_stays_in_decoded_text():
    tokenizer = build_byte_tokenizer(length=64, roles=("user", "tool"), parts=("<think>",))
    (part,) = tokenizer.encode("<think>", add_special_tokens=False)
    assert tokenizer.decode([part], skip_special_tokens=True) == "<think>"
    (tool,) = tokenizer.encode("<|tool|>", add_special_tokens=False)
    assert tokenizer.decode([tool], skip_special_tokens=True) == ""
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (256, 257)


def test_words_fill_a_vocabulary_up():
    assert len(build_byte_tokenizer(length=64)) == 260
    tokenizer = build_byte_tokenizer(length=64, vocabulary=1000)
    assert len(tokenizer) == 1000
    text = "".join(map(chr, range(32, 127)))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_seed_makes_the_same_weights():
    def weights(seed: int) -> torch.Tensor:
        model = build_byte_llama(build_byte_tokenizer(length=64), seed=seed)
        assert model.config.max_position_embeddings == 64
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64  # attention, feed-forward part, norms
    assert weights(1).numel() == 2 * 260 * 64 + 2 * layer + 64
