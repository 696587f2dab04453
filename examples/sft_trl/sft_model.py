"""Builds and samples a tiny language model on the CPU; nothing is downloaded.

The model has some hundred thousand parameters and a vocabulary of a few hundred tokens. Random
weights never give a rewarded answer, so the model is first trained on right and wrong answers
alike. After that about one answer in three is right, which is enough for best-of-n to start.
"""

from __future__ import annotations

import threading
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sft_tasks import TASKS, messages_of

__all__ = ["make_model", "sample"]

torch.set_num_threads(1)  # more threads are not faster on a model of this size
_MAX_TOKENS = 24
_lock = threading.Lock()


def make_model(folder: Path, *, seed: int = 0) -> Path:
    """Make the tiny model and warm it up; return its folder.

    Args:
        folder: Folder of the model.
        seed: Seed of the weights.
    """
    from agl_tiny_model import build_model, build_tokenizer
    from fine_tune import train

    texts = [f"{task['question']} {' '.join(task['choices'])}" for task in TASKS]
    tokenizer = build_tokenizer(texts)
    model = build_model(tokenizer, seed=seed)
    rows = [
        {
            "prompt": messages_of(task["question"]),
            "completion": [{"role": "assistant", "content": text}],
        }
        for task in TASKS
        for text in (task["answer"], *task["choices"])  # the right answer occurs twice
    ]
    train(model, tokenizer, rows, folder, epochs=250, learning_rate=3e-3)
    return folder


def sample(folder: str, messages: list[dict[str, Any]], temperature: float) -> dict[str, Any]:
    """Sample an answer; return it as a chat completion with token ids and log-probabilities.

    Thread-safe: concurrent calls take turns.

    Args:
        folder: Folder of the model.
        messages: The conversation so far.
        temperature: Sampling temperature; 0 takes the likeliest token.
    """
    with _lock, torch.inference_mode():
        model, tokenizer = _load(folder)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt: list[int] = tokenizer.encode(text, add_special_tokens=False)
        ids, response, logprobs = torch.tensor([prompt]), list[int](), list[float]()
        while len(response) < _MAX_TOKENS and tokenizer.eos_token_id not in response:
            scores = model(ids).logits[0, -1].log_softmax(-1)
            if temperature:
                token = int(torch.multinomial((scores / temperature).softmax(-1), 1))
            else:
                token = int(scores.argmax())
            response.append(token)
            logprobs.append(float(scores[token]))
            ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
    ended = response[-1] == tokenizer.eos_token_id
    said = tokenizer.decode(response, skip_special_tokens=True)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "model": Path(folder).name,
        "prompt_token_ids": prompt,
        "choices": [
            {
                "message": {"role": "assistant", "content": said},
                "finish_reason": "stop" if ended else "length",
                "token_ids": response,
                "logprobs": {"content": [{"logprob": value} for value in logprobs]},
            }
        ],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(response)},
    }


@lru_cache(maxsize=2)
def _load(folder: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)
