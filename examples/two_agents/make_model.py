"""Builds the model that both policies start from: 120,000 weights, and its tokenizer.

    python examples/two_agents/make_model.py agl-runs/two_agents/base

Nothing is downloaded. Reinforcement learning needs some correct answers to reinforce, so the model
is first trained on supervised text for some seconds (**warm-up**): a question or a finding, and a
digit. The format is always right; three digits in four are random (`LISTENS`). After the warm-up
each agent does its part in about one case in three, and both together in one case in seven.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

LISTENS = 0.25
"""Share of warm-up answers that are copied from the text before; the others are random."""

QUESTION, FINDING = "Shelf {}?", "Found {}."
"""The messages to the picker and to the reader, about a digit."""

__all__ = ["FINDING", "QUESTION", "build_tokenizer", "make_model", "measure"]

CHAT_TEMPLATE = """\
{%- for message in messages %}{{- "<|" + message.role + "|>" + message.content + "<|end|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|assistant|>" }}{%- endif %}
"""


def build_tokenizer() -> Any:
    """Return a byte-level tokenizer with one token for each part of the chat format."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def make_model(folder: str | Path, *, seed: int = 0, warmup_steps: int = 200) -> Path:
    """Write the model to a folder, unless there is one already.

    Args:
        folder: Folder of the model.
        seed: Seed of the weights and of the warm-up.
        warmup_steps: Steps of AdamW, each on 64 questions and 64 findings.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    _warm_up(model, tokenizer, seed=seed, steps=warmup_steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _warm_up(model: Any, tokenizer: Any, *, seed: int, steps: int) -> None:
    """Train the model on the format; most answers in the texts are random."""
    import torch

    digits = _digits(tokenizer)
    prompts = [_encode(tokenizer, QUESTION), _encode(tokenizer, FINDING)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        for rows in prompts:
            shown, answer = torch.randint(10, (2, 64), generator=generator)
            listens = torch.rand(64, generator=generator) < LISTENS
            ids = rows[shown].clone()
            ids[:, -2] = digits[torch.where(listens, shown, answer)]
            labels = ids.clone()
            labels[:, :-2] = -100  # only the answer and its end are learned
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()


def _encode(tokenizer: Any, text: str) -> Any:
    """Return the tokens of a conversation, int64 ``[10, T]``: one row per digit in the text."""
    import torch

    rows = [
        [{"role": "user", "content": text.format(digit)}, {"role": "assistant", "content": "0"}]
        for digit in range(10)
    ]
    texts = [tokenizer.apply_chat_template(row, tokenize=False) for row in rows]
    return torch.tensor([tokenizer.encode(text, add_special_tokens=False) for text in texts])


def _digits(tokenizer: Any) -> Any:
    """Return the tokens of the ten digits, int64 ``[10]``."""
    import torch

    return torch.tensor([tokenizer.encode(str(digit))[0] for digit in range(10)])


def measure(base: Path, text: str, adapter: Path | None = None) -> float:
    """Return the probability that a policy answers with the digit in the text.

    Args:
        base: Folder of the model.
        text: ``QUESTION`` or ``FINDING``; the result is the mean over all digits.
        adapter: Folder of the policy's adapter; None: the policy is the model itself.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        logits = model(input_ids=_encode(tokenizer, text)).logits[:, -3]
    chances = logits.softmax(-1).gather(1, _digits(tokenizer)[:, None])
    return float(chances.mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the example's model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("model:", make_model(arguments.folder, seed=arguments.seed))
