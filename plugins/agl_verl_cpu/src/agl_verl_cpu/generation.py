"""Generates text with a small causal language model, one request at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Generator", "Token"]


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token.

    Attributes:
        id: Token id.
        logprob: Natural log-probability that it was sampled with, in fp32.
        text: Text that it adds to the answer; empty within a character of several tokens.
    """

    id: int
    logprob: float
    text: str


class Generator:
    """A model and its tokenizer. Thread-safe: one request or weight update runs at a time.

    Args:
        path: Folder with model and tokenizer, in Hugging Face's format.
        seed: Seed of the sampling.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.max_length: int = self.model.config.max_position_embeddings
        stops = self.model.generation_config.eos_token_id
        self.stop_ids = frozenset([stops] if isinstance(stops, int) else stops or ())
        self._random = torch.Generator().manual_seed(seed)
        self._lock = threading.Lock()

    def encode(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        """Return the token ids of a conversation, ready for the model's answer."""
        ids = self.tokenizer.apply_chat_template(
            list(messages),
            tools=tools or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        return [int(token) for token in ids]

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights between two requests.

        Raises:
            KeyError: A name is unknown to the model; no weight has changed.
        """
        state = self.model.state_dict()
        if unknown := weights.keys() - state.keys():
            raise KeyError(f"the model has no weights {sorted(unknown)}")
        with self._lock, torch.no_grad():
            for name, tensor in weights.items():
                state[name].copy_(tensor)

    def stream(
        self, prompt_ids: Sequence[int], max_tokens: int, temperature: float
    ) -> Iterator[Token]:
        """Sample tokens up to the end token, which is yielded too.

        Args:
            prompt_ids: Token ids of the prompt, at least one.
            max_tokens: Limit of sampled tokens.
            temperature: Divides the logits; 0 takes the likeliest token, with log-probability 0.
        """
        room = min(max_tokens, self.max_length - len(prompt_ids))
        sampled: list[int] = []
        said = ""
        with self._lock, torch.no_grad():
            cache: Any = None
            feed = torch.tensor([list(prompt_ids)])
            while len(sampled) < room:
                output = self.model(feed, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                token, logprob = self._sample(output.logits[0, -1].float(), temperature)
                sampled.append(token)
                text = self.tokenizer.decode(sampled, skip_special_tokens=True)
                # An incomplete character decodes to U+FFFD; its text follows with its last token.
                new = "" if text.endswith("\ufffd") else text[len(said) :]
                said += new
                yield Token(token, logprob, new)
                if token in self.stop_ids:
                    return
                feed = torch.tensor([[token]])

    def _sample(self, logits: torch.Tensor, temperature: float) -> tuple[int, float]:
        if temperature == 0:
            return int(logits.argmax()), 0.0
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        token = int(torch.multinomial(logprobs.exp(), 1, generator=self._random))
        return token, float(logprobs[token])
