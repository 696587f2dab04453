"""Small tokenizers of five families; their chat templates are in ``chat_templates``.

The templates follow the published ones in what matters for histories, and leave out the rest:

- Qwen3: reasoning is cut off before the last message of the user; the last answer after it begins
  with its reasoning, empty if there is none; results of tools are in messages of the user.
- Llama 3.1: heads of roles, one end token for all; one tool call in a message; text is trimmed.
- Mistral 7 (v7): nothing between turns; ids of calls have nine letters; results name the call.
- Mistral v3: system message and tools are before the *last* message of the user.
- Gemma 3: no system role, its text begins the first message; text is trimmed; ``model`` answers.
- DeepSeek R1: everything before ``</think>`` is cut off; the prompt ends with ``<think>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Family:
    """The special tokens of a family's template.

    Attributes:
        end: The token that ends an answer.
        special: Its other special tokens.
        opened: Whether the prompt ends with the mark that begins reasoning.
    """

    end: str
    special: Sequence[str]
    opened: bool = False


_MISTRAL_MARKS = [
    f"[{mark}{name}]"
    for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS", "SYSTEM_PROMPT")
    for mark in ("", "/")
]
FAMILIES = {
    "qwen3": Family("<|im_end|>", ["<|endoftext|>", "<|im_start|>"]),
    "llama3": Family(
        "<|eot_id|>",
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"],
    ),
    "mistral": Family("</s>", ["<s>", "[TOOL_CALLS]", *_MISTRAL_MARKS]),
    "mistral_v3": Family("</s>", ["<s>", "[TOOL_CALLS]", *_MISTRAL_MARKS]),
    "gemma": Family("<end_of_turn>", ["<bos>", "<eos>", "<start_of_turn>"]),
    "deepseek": Family(
        "<|end▁of▁sentence|>",
        [
            "<|begin▁of▁sentence|>",
            "<|User|>",
            "<|Assistant|>",
            "<|tool▁sep|>",
            *(
                f"<|tool▁{name}▁{mark}|>"
                for name in ("calls", "call", "outputs", "output")
                for mark in ("begin", "end")
            ),
        ],
        opened=True,
    ),
}

_TEXT = """\
The agent asks for the weather of a city and for the time, thinks about what it was told, and says
what it found: answer one two three. {"name": "look", "arguments": {"city": "Paris", "day": 1}}
"""


def build_family(name: str) -> Any:
    """Return the tokenizer of a family: byte-level BPE, so it encodes any text."""
    family = FAMILIES[name]
    template = (Path(__file__).parent / f"chat_templates/{name}.jinja").read_text()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [family.end, *family.special, "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 256 + 150,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Template text is learned as well, so that there are merges at the seams of turns.
    bpe.train_from_iterator([_TEXT, template, json.dumps(_TEXT)] * 3, trainer)
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    marks += ["<think>", "</think>"]
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=family.end,
        pad_token="<pad>",
        chat_template=template,
        model_max_length=2**16,
        clean_up_tokenization_spaces=False,
    )
