"""An HF server whose answers a test chooses; its model gives them their log-probabilities."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch

from agl_server_hf.app import build_app
from agl_server_hf.generation import Generation, Token
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_tiny_model import build_model
from tests.plugins.agl_server_hf.families import FAMILIES, build_family


class ForcedEngine:
    """Emits the tokens that a test queued, as if they had been sampled.

    Attributes:
        answers: Token ids of the answers to come.
        prompts: The prompts so far.
        ends: The tokens that end an answer.
        after_step: Called when tokens were emitted, as the engine does after each step.
    """

    after_step: Callable[[], None]

    def __init__(self, model: Any, end: int) -> None:
        self.model = model
        self.answers: deque[list[int]] = deque()
        self.prompts: list[list[int]] = []
        self.ends = {end}

    def submit(self, *generations: Generation) -> None:
        for generation in generations:
            self._answer(generation)
        self.after_step()

    def _answer(self, generation: Generation) -> None:
        prompt = list(generation.prompt)
        self.prompts.append(prompt)
        answer = self.answers.popleft()[: generation.sampling.max_tokens]
        logprobs = forward(self.model, [*prompt, *answer])[-len(answer) :]
        for position, (token, logprob) in enumerate(zip(answer, logprobs, strict=True), start=1):
            reason = None
            if position == len(answer):
                reason = "stop" if token in self.ends else "length"
            sampled = Token(token, logprob, (), reason)
            generation.token_ids.append(token)
            generation.tokens.append(sampled)
            if generation.stream or reason is not None:
                generation.emit(sampled)

    def cancel(self, generation: Generation) -> None:
        """All tokens are emitted by submit()."""


def forward(model: Any, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token but the first, given those before it."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, :-1].double()
    after = torch.tensor(list(ids[1:]))[:, None]
    return logits.log_softmax(-1).gather(-1, after)[:, 0].tolist()


class ForcedServer:
    """A server of one family. Use :meth:`running`.

    Attributes:
        tokenizer: The family's tokenizer.
        engine: Where answers are queued.
    """

    def __init__(self, family: str, *, max_length: int = 2**15) -> None:
        self.family = FAMILIES[family]
        self.tokenizer = build_family(family)
        self.model = build_model(self.tokenizer, seed=1, hidden_size=32).eval()
        self.engine = ForcedEngine(self.model, self.tokenizer.eos_token_id)
        self.app: Any = build_app(
            self.engine,  # type: ignore[arg-type]
            self.tokenizer,
            model="q",
            max_length=max_length,
            reasoning=True,
            vocabulary=len(self.model.get_input_embeddings().weight),
        )
        self.url = ""

    @property
    def model_list(self) -> list[dict[str, Any]]:
        return [
            {
                "model_name": "q",
                "litellm_params": {"model": "hosted_vllm/q", "api_base": self.url},
            }
        ]

    def encode(
        self, text: str, *, ends: bool = True, odd: random.Random | None = None
    ) -> list[int]:
        """Return the tokens of an answer.

        Args:
            text: Its text.
            ends: Whether the end token is the last.
            odd: Where given, some characters are tokens of their own, as a model may sample them.
        """
        encode = self.tokenizer.encode
        pieces = [text]
        if odd is not None and "<" not in text:
            pieces = [piece for word in text.split(" ") for piece in (word, " ")][:-1]
            pieces = [
                part for piece in pieces for part in (piece if odd.random() < 0.5 else [piece])
            ]
        ids = [token for piece in pieces for token in encode(piece, add_special_tokens=False)]
        return [*ids, self.tokenizer.eos_token_id] if ends else ids

    def say(self, text: str, **options: Any) -> list[int]:
        """Queue an answer, and return its tokens. ``text`` has the reasoning in its marks."""
        if self.family.opened:  # the prompt has the first mark
            text = text.removeprefix("<think>")
        ids = self.encode(text, **options)
        self.engine.answers.append(ids)
        return ids

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ForcedServer]:
        launcher = PythonServerLauncher(self.app, PythonServerLauncherArgs(launch_mode="thread"))
        await launcher.start()
        self.url = launcher.access_endpoint + "/v1"
        try:
            yield self
        finally:
            await launcher.stop()
