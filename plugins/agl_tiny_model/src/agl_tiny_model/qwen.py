"""A language model small enough to build in a test, with a tokenizer and a chat template.

The model is a Qwen2 of some hundred thousand parameters. Real engines (Transformers, vLLM, TRL,
verl) load it from a folder like any other model. Nothing is downloaded. The weights are random;
:func:`teach` makes the model memorise a few conversations, so that it ends its answers and calls a
tool.

Importing this file needs only the standard library; building needs torch, transformers and
tokenizers. So the interpreter of another environment, where the engine is installed, can run it::

    python qwen.py FOLDER --teach --adapter adapters/a

which is what :func:`make_tiny_model` does.
"""

# pyright: reportMissingImports=false
# The libraries that build the model may be missing where this package is installed.

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "CHAT_TEMPLATE",
    "CONVERSATIONS",
    "VLLM_CPU_ARGS",
    "VLLM_CPU_ENV",
    "WEATHER_TOOL",
    "build_adapter",
    "build_model",
    "build_tokenizer",
    "make_tiny_model",
    "teach",
]

CHAT_TEMPLATE = """\
{%- if tools %}
{{- "<|im_start|>system\\n" }}
{%- if messages[0].role == "system" %}{{- messages[0].content + "\\n\\n" }}{%- endif %}
{{- "You may call these functions:\\n<tools>\\n" }}
{%- for tool in tools %}{{- tool | tojson + "\\n" }}{%- endfor %}
{{- "</tools>\\nTo call one, say:\\n<tool_call>\\n" }}
{{- '{"name": NAME, "arguments": {...}}' + "\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{{- "<|im_start|>user\\n<tool_response>\\n" + message.content }}
{{- "\\n</tool_response><|im_end|>\\n" }}
{%- elif not (tools and loop.first and message.role == "system") %}
{{- "<|im_start|>" + message.role + "\\n" + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{%- set arguments = call.function.arguments %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- arguments if arguments is string else arguments | tojson }}
{{- "}\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""
"""ChatML with the tool format of Hermes models (vLLM: ``--tool-call-parser hermes``)."""

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Say how the weather is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""The tool that :data:`CONVERSATIONS` call."""


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _calls(city: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": city}}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [_user("How are you?"), _assistant("Fine, thank you. And you?")]},
    {"messages": [_user("Count to five."), _assistant("One, two, three, four, five.")]},
    {
        "messages": [
            _user("How is the weather in Paris?"),
            _calls("Paris"),
            {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
            _assistant("It is sunny in Paris."),
        ],
        "tools": [WEATHER_TOOL],
    },
    {
        "messages": [_user("How is the weather in Rome?"), _calls("Rome")],
        "tools": [WEATHER_TOOL],
    },
]
"""Default conversations of :func:`teach`: ``messages``, and optionally ``tools``."""

VLLM_CPU_ARGS: dict[str, Any] = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    "kv_cache_memory_bytes": "32M",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}
"""Options with which vLLM serves a tiny model on a CPU in 1.5 GiB."""

VLLM_CPU_ENV: dict[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    # Without this option the first call with log-probabilities compiles for 15 seconds.
    "TORCHDYNAMO_DISABLE": "1",
}
"""Environment variables for a vLLM server with these options."""

_WORDS = """\
The quick brown fox jumps over the lazy dog. One, two, three, four, five, six, seven, eight, nine.
system user assistant tool name arguments function description parameters properties required type
{"type": "object", "string", "number"} 0 1 2 3 4 5 6 7 8 9 + - * / = ( ) [ ] What is the answer?
"""


def build_tokenizer(texts: Iterable[str] = (), *, vocab_size: int = 640) -> Any:
    """Return a byte-level BPE tokenizer that encodes any text.

    Args:
        texts: Training texts of the merges, besides the chat template and a few words.
        vocab_size: Upper bound of the number of tokens; at least 263: 256 bytes, 3 special tokens
            and 4 marks of tools.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 4,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned = [_WORDS, CHAT_TEMPLATE, json.dumps(CONVERSATIONS, ensure_ascii=False), *texts]
    bpe.train_from_iterator(learned * 3, trainer)
    # Not special tokens, so that a server's tool parser finds them in the text.
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",  # noqa: S106 -- no secret
        pad_token="<|endoftext|>",  # noqa: S106
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    tokenizer: Any,
    *,
    seed: int = 0,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 2,
    tied: bool = False,
) -> Any:
    """Return a Qwen2 with random weights, float32, on the CPU.

    Args:
        tokenizer: The tokenizer of the model.
        seed: Seed of the weights.
        hidden_size: Width; a multiple of ``16 * heads``.
        layers: Decoder layers.
        heads: Attention heads; one key-value head.
        tied: Whether input and output embeddings are one tensor.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).float()


def teach(
    model: Any,
    tokenizer: Any,
    conversations: Sequence[dict[str, Any]] = CONVERSATIONS,
    *,
    max_steps: int = 400,
    learning_rate: float = 3e-3,
) -> int:
    """Train a model until it has memorised every answer of some conversations.

    Args:
        model: Trained in place, with AdamW on all conversations at once.
        tokenizer: The model's tokenizer.
        conversations: See :data:`CONVERSATIONS`; each message of the assistant is an answer.
        max_steps: Largest number of steps.
        learning_rate: Learning rate of AdamW.

    Returns:
        The number of steps.

    Raises:
        RuntimeError: The model has not memorised the answers after ``max_steps``.
    """
    import torch

    rows = [row for it in conversations for row in _answers(tokenizer, it)]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    pad = tokenizer.pad_token_id
    # Padded on the right; labels of -100 (prompt and padding) are ignored.
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor([*prompt, *answer])
        labels[row, len(prompt) : end] = torch.tensor(answer)
    target, counted = labels[:, 1:], labels[:, 1:] != -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    model.train()
    for step in range(max_steps + 1):
        logits = model(input_ids=ids).logits[:, :-1]
        # The margin keeps greedy answers the same under another engine's rounding errors.
        sure = logits.softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0][counted]
        if bool((sure > 0.9).all()):
            model.eval()
            return step
        if step == max_steps:
            break
        loss = torch.nn.functional.cross_entropy(logits[counted], target[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise RuntimeError(f"the tiny model has not learned its conversations in {max_steps} steps")


def _answers(tokenizer: Any, conversation: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Return prompt and answer, as token ids, for each message of the assistant.

    Raises:
        ValueError: An answer begins with a character that merges with the end of its prompt.
    """
    messages, tools = conversation["messages"], conversation.get("tools")

    def encode(part: list[dict[str, Any]], **options: Any) -> list[int]:
        text = tokenizer.apply_chat_template(part, tools=tools, tokenize=False, **options)
        return tokenizer.encode(text, add_special_tokens=False)

    found: list[tuple[list[int], list[int]]] = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = encode(messages[:index], add_generation_prompt=True)
            whole = encode(messages[: index + 1])
            if whole[: len(prompt)] != prompt:
                raise ValueError(f"the tokens of {message['content']!r} merge with its prompt")
            end = len(whole) - whole[::-1].index(tokenizer.eos_token_id)  # without the new line
            found.append((prompt, whole[len(prompt) : end]))
    return found


def build_adapter(
    folder: str | Path, model: Any, *, seed: int = 0, rank: int = 4, scale: float = 1.0
) -> None:
    """Write a LoRA adapter (PEFT's format) that changes a model's answers.

    Args:
        folder: Folder of the adapter; created if missing.
        model: Model of the adapter.
        seed: Seed of the weights.
        rank: Rank of the matrices.
        scale: Standard deviation of the entries of B; an adapter with 0 changes nothing.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    targets = ("q_proj", "v_proj", "o_proj")
    tensors: dict[str, Any] = {}
    for name, module in model.named_modules():
        if name.endswith(targets):
            prefix = f"base_model.model.{name}"
            rows, columns = module.weight.shape
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
            b = scale * torch.randn(rows, rank, generator=generator)
            tensors[f"{prefix}.lora_B.weight"] = b
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
        "base_model_name_or_path": None,
        "inference_mode": True,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


def make_tiny_model(
    folder: str | Path,
    *,
    python: str | Path = sys.executable,
    seed: int = 0,
    taught: bool = True,
    tied: bool = False,
    hidden_size: int = 64,
    layers: int = 2,
    adapters: Sequence[str | Path] = (),
) -> Path:
    """Build a tiny model with the interpreter of any environment that has torch and transformers.

    Args:
        folder: Folder of the model and its tokenizer.
        python: The interpreter.
        seed: Seed of the weights.
        taught: Whether to :func:`teach` it :data:`CONVERSATIONS` (takes some seconds).
        tied: See :func:`build_model`.
        hidden_size: See :func:`build_model`.
        layers: See :func:`build_model`.
        adapters: Folders of LoRA adapters to write, each with another seed.

    Returns:
        The folder.

    Raises:
        RuntimeError: The build failed; the message holds the last output of the interpreter.
    """
    arguments = [str(folder), "--seed", str(seed), "--hidden-size", str(hidden_size)]
    arguments += ["--layers", str(layers)]
    arguments += ["--teach"] * taught + ["--tied"] * tied
    for adapter in adapters:
        arguments += ["--adapter", str(adapter)]
    # Isolated (-I), so that modules in this file's folder do not hide others of the same name.
    done = subprocess.run(  # noqa: S603 -- the caller's interpreter runs this file
        [str(python), "-I", __file__, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{python} did not build a tiny model:\n{done.stderr[-2000:]}")
    return Path(folder)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build a tiny language model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tied", action="store_true", help="tie input and output embeddings")
    parser.add_argument("--teach", action="store_true", help="teach it some conversations")
    parser.add_argument("--adapter", type=Path, action="append", default=[], help="LoRA folder")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)  # as fast for tensors this small, and leaves the other cores free
    tokenizer = build_tokenizer()
    model = build_model(
        tokenizer,
        seed=options.seed,
        hidden_size=options.hidden_size,
        layers=options.layers,
        tied=options.tied,
    )
    steps = teach(model, tokenizer) if options.teach else 0
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    for number, adapter in enumerate(options.adapter, start=1):
        build_adapter(adapter, model, seed=options.seed + number)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{options.folder}: {size} parameters, {len(tokenizer)} tokens, {steps} steps")


if __name__ == "__main__":
    _main()
