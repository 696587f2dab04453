"""Builds the example's model: a transformer of 120,000 random weights, and its tokenizer.

    python examples/rl_digits/make_model.py agl-runs/rl_digits/base

Nothing is downloaded. Reinforcement learning needs some correct answers to reinforce, so the model
is first trained on supervised text for half a minute (**warm-up**): a question, a tool call, an
answer. The format of the text is always right, but three digits in four are random (`LISTENS`).
After the warm-up the model knows the format and does the task in about one case in five. That is
the reward at which reinforcement learning starts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agl_tiny_model import build_byte_llama, build_byte_tokenizer

LISTENS = 0.25
"""Share of warm-up digits that are copied from the text before; the others are random."""

__all__ = ["CHAT_TEMPLATE", "build_tokenizer", "make_model"]

CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- "<|assistant|>" + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + "}</tool_call>" }}
{%- endfor %}
{{- "<|end|>" }}
{%- else %}
{{- "<|" + message.role + "|>" + message.content + "<|end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|assistant|>" }}{%- endif %}
"""
"""The template of Hermes models without the list of tools, which so small a model cannot use."""


def build_tokenizer() -> Any:
    """Return a byte-level tokenizer with one token for each part of the format."""
    return build_byte_tokenizer(
        length=256,
        chat_template=CHAT_TEMPLATE,
        roles=("user", "tool", "assistant"),
        parts=("<tool_call>", "</tool_call>", '{"name": "look", "arguments": {"shelf": "', '"}}'),
    )


def make_model(folder: str | Path, *, seed: int = 0, warmup_steps: int = 400) -> Path:
    """Write the model to a folder, unless there is one already.

    Args:
        folder: Folder of the model.
        seed: Seed of the weights and of the warm-up.
        warmup_steps: Steps of AdamW, each on 64 conversations.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return folder
    tokenizer = build_tokenizer()
    model = build_byte_llama(tokenizer, seed=seed)
    _warm_up(model, tokenizer, seed=seed, steps=warmup_steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _warm_up(model: Any, tokenizer: Any, *, seed: int, steps: int) -> None:
    """Train the model on the format; most digits in the texts are random."""
    import torch

    call = {"type": "function", "function": {"name": "look", "arguments": {"shelf": "0"}}}
    messages = [
        {"role": "user", "content": "Shelf 0?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "0"},
        {"role": "assistant", "content": "0"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    conversation = torch.tensor(tokenizer.encode(text, add_special_tokens=False))
    digits = torch.tensor([tokenizer.encode(str(digit))[0] for digit in range(10)])
    places = (conversation == digits[0]).nonzero()[:, 0]  # asked, called, found, answered
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(10, (64, 4), generator=generator)
        listens = torch.rand((64, 2), generator=generator) < LISTENS
        chosen[:, 1::2] = torch.where(listens, chosen[:, 0::2], chosen[:, 1::2])
        ids = conversation.repeat(64, 1)
        ids[:, places] = digits[chosen]
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the example's model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("model:", make_model(arguments.folder, seed=arguments.seed))
