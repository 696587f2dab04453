"""The model of the fake: one matrix that is really trained, with NumPy.

Softmax regression: the next token depends on the last token and on the set of tokens so far. The
model has no layers and only memorises, but gradients, Adam's updates and samples are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Adam", "Base", "gradient", "logprobs", "make_base", "sample"]

Matrix = Any  # a float32 array of NumPy


@dataclass(frozen=True, slots=True)
class Base:
    """A base model.

    Attributes:
        tokenizer: A tokenizer of Transformers.
        weights: Array of shape (2 * vocabulary, vocabulary).
    """

    tokenizer: Any
    weights: Matrix


def features(tokens: Sequence[int], vocabulary: int) -> Matrix:
    """Return a row for each position: the token there, and all tokens up to it."""
    last = np.zeros((len(tokens), vocabulary), np.float32)
    last[np.arange(len(tokens)), list(tokens)] = 1
    return np.concatenate([last, np.maximum.accumulate(last)], axis=1)


def logprobs(weights: Matrix, inputs: Matrix) -> Matrix:
    """Return the log-probabilities of all tokens, a row for each row of features."""
    scores = inputs @ weights
    scores -= scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def gradient(
    weights: Matrix, tokens: Sequence[int], targets: Matrix, counts: Matrix
) -> tuple[Matrix, Matrix]:
    """Return the log-probability of each target, and the gradient of the weighted loss.

    Args:
        weights: The model.
        tokens: The input, a token for each position.
        targets: The next token at each position.
        counts: The weight of each position in the loss, the weighted sum of -log p.
    """
    inputs, rows = features(tokens, weights.shape[1]), np.arange(len(tokens))
    predicted = logprobs(weights, inputs)
    error = np.exp(predicted)
    error[rows, targets] -= 1
    counted = counts != 0  # most positions are prompt
    return predicted[rows, targets], inputs[counted].T @ (error * counts[:, None])[counted]


def sample(
    weights: Matrix, prompt: Sequence[int], end: int, most: int, temperature: float, dice: Any
) -> tuple[list[int], list[float]]:
    """Return sampled tokens, up to an ``end`` or ``most`` of them, and their log-probabilities."""
    tokens, found = list(prompt), list[float]()
    while len(found) < most and (not found or tokens[-1] != end):
        (row,) = logprobs(weights, features(tokens, weights.shape[1])[-1:])
        noise = temperature * dice.gumbel(size=row.shape)  # Gumbel-max: an exact sample
        tokens.append(int((row + noise).argmax()))
        found.append(float(row[tokens[-1]]))
    return tokens[len(prompt) :], found


class Adam:
    """AdamW on one matrix (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    def __init__(self) -> None:
        self._steps = 0
        self._mean: Any = 0.0
        self._square: Any = 0.0

    def step(self, weights: Matrix, gradient: Matrix, params: dict[str, float]) -> Matrix:
        """Return the updated weights; ``params`` are the fields of Tinker's ``AdamParams``."""
        norm, most = float(np.linalg.norm(gradient)), params["grad_clip_norm"]
        if 0 < most < norm:
            gradient = gradient * (most / norm)
        self._steps += 1
        rate, beta1, beta2 = params["learning_rate"], params["beta1"], params["beta2"]
        self._mean = beta1 * self._mean + (1 - beta1) * gradient
        self._square = beta2 * self._square + (1 - beta2) * gradient**2
        mean = self._mean / (1 - beta1**self._steps)
        root = np.sqrt(self._square / (1 - beta2**self._steps))
        decayed = weights * (1 - rate * params["weight_decay"])
        return (decayed - rate * mean / (root + params["eps"])).astype(np.float32)


def make_base(prompts: Sequence[str], answers: Sequence[str], *, steps: int = 40) -> Base:
    """Return a model that gives each answer to each prompt, all with about one probability."""
    from agl_tiny_model import build_tokenizer

    tokenizer = build_tokenizer([*prompts, *answers], vocab_size=400)
    vocabulary = len(tokenizer)
    inputs, targets = [], []
    for text in prompts:
        asked = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(rendered, add_special_tokens=False)
        for answer in answers:
            said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            inputs.append(features([*prompt, *said[:-1]], vocabulary)[len(prompt) - 1 :])
            targets.extend(said)
    stacked, rows = np.concatenate(inputs), np.arange(len(targets))
    weights, adam = np.zeros((2 * vocabulary, vocabulary), np.float32), Adam()
    params = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    for _ in range(steps):
        error = np.exp(logprobs(weights, stacked))
        error[rows, targets] -= 1
        change = stacked.T @ error / len(targets)
        weights = adam.step(weights, change, {**params, "weight_decay": 0.0, "grad_clip_norm": 0.0})
    return Base(tokenizer, weights)
