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

from agl_tiny_model import build_byte_llama, build_byte_tokenizer

LISTENS = 0.25
"""Share of warm-up answers that are copied from the text before; the others are random."""

QUESTION, FINDING = "Shelf {}?", "Found {}."
"""The messages to the picker and to the reader, about a digit."""

__all__ = ["FINDING", "QUESTION", "make_model", "measure"]


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
    tokenizer = build_byte_tokenizer(length=64)
    model = build_byte_llama(tokenizer, seed=seed)
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
