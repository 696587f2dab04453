"""An agent whose reward depends on its two prompts only, and a scripted reflecting model."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from agl_algo_gepa import GEPA
from agl_core.agent import LitAgent
from agl_core.errors import RunFailedError
from agl_core.trainer import Trainer
from agl_core.types import LLM, NamedResources, PromptTemplate, Rollout
from agl_store_memory import InMemoryLightningStore

Answer = str | Exception | Callable[[], Awaitable[Any]] | SimpleNamespace

SEEDS = {"plan": "Plan {question}", "answer": "Answer {question}"}
SMALL: dict[str, Any] = {"max_iterations": 8, "reflection_minibatch_size": 2, "seed": 1}


class Counting(LitAgent[int]):
    """An agent whose tasks require up to two pluses in one of its two prompts."""

    def rollout(self, task: int, resources: NamedResources, rollout: Rollout) -> float:
        name = "plan" if task % 2 else "answer"
        prompt = resources[name]
        assert isinstance(prompt, PromptTemplate)
        return float(prompt.template.count("+") >= task % 3)


class Client:
    """A chat completions client that calls a function and records the requests.

    Args:
        script: Returns the text, an error to raise, a coroutine function to await, or a completion.
    """

    def __init__(self, script: Callable[[dict[str, Any]], Answer]) -> None:
        self.script = script
        self.chat = self.completions = self
        self.requests: list[dict[str, Any]] = []

    async def create(self, **request: Any) -> Any:
        self.requests.append(request)
        answer = self.script(request)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return await answer()
        return completion(answer) if isinstance(answer, str) else answer


def completion(text: Any) -> SimpleNamespace:
    message = SimpleNamespace(message=SimpleNamespace(content=text))
    return SimpleNamespace(
        choices=[message], usage=SimpleNamespace(prompt_tokens=30, completion_tokens=10)
    )


def prompt_in(request: dict[str, Any]) -> str:
    """Return the prompt in a request to the model."""
    text = request["messages"][-1]["content"]
    found = re.search(r"<prompt_template>\n(.*?)\n</prompt_template>", text, re.DOTALL)
    assert found is not None
    return found[1]


def helpful(request: dict[str, Any]) -> str:
    """Return the prompt with a plus and a new word."""
    return f"{prompt_in(request)} +{request.get('seed', 0) % 1000}"


def seeds() -> NamedResources:
    prompts = {
        name: PromptTemplate(template=text, engine="f-string") for name, text in SEEDS.items()
    }
    return {"llm": LLM(endpoint="http://127.0.0.1:1/v1", model="none"), **prompts}


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def fit(store: InMemoryLightningStore) -> Callable[..., GEPA[Any]]:
    """Return a function that runs GEPA with a scripted model, or the environment's endpoint."""

    def run(
        script: Any = helpful,
        agent: LitAgent[Any] | None = None,
        fails: str = "",
        **options: Any,
    ) -> GEPA[Any]:
        client = None if script is None else Client(script)
        algorithm: GEPA[Any] = GEPA(client, **{**SMALL, **options})
        trainer = Trainer(
            algorithm=algorithm,
            store=store,
            strategy="shm",
            adapter="messages",
            n_runners=4,
            initial_resources=seeds(),
        )
        with pytest.raises(RunFailedError, match=fails) if fails else nullcontext():
            trainer.fit(agent or Counting(), list(range(12)), val_dataset=list(range(6)))
        return algorithm

    return run


@pytest.fixture
def counting() -> type[Counting]:
    """Return the agent's class, for subclasses."""
    return Counting


@pytest.fixture
def make_client() -> type[Client]:
    """Return the client's class."""
    return Client
