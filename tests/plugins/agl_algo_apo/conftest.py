"""An agent whose reward depends on its prompt only, and a scripted critic and editor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agl_algo_apo import APO
from agl_core.agent import LitAgent, rollout
from agl_core.trainer import Trainer
from agl_core.types import LLM, PromptTemplate
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

SEED_PROMPT = "Answer {question} well"
SMALL: dict[str, Any] = {
    "beam_width": 2,
    "branch_factor": 2,
    "beam_rounds": 2,
    "gradient_batch_size": 2,
    "val_batch_size": 3,
    "seed": 1,
}


@rollout
def counting(task: int, prompt_template: PromptTemplate) -> float:
    """An agent that solves more tasks, the more pluses its prompt has."""
    return float(prompt_template.template.count("+") > task % 4)


def is_edit(request: SeenRequest) -> bool:
    return "<critique>" in request.body["messages"][-1]["content"]


def prompt_in(request: SeenRequest) -> str:
    """Return the prompt in a request to the critic or the editor."""
    text = request.body["messages"][-1]["content"]
    found = re.search(r"<prompt_template>\n(.*?)\n</prompt_template>", text, re.DOTALL)
    assert found is not None
    return found[1]


def helpful(request: SeenRequest) -> Reply:
    """Reply as critic, or as editor who adds a plus and a new word."""
    if is_edit(request):
        return Reply(f"{prompt_in(request)} +{request.body['seed'] % 1000}")
    return Reply("- It needs more pluses.")


class OneCallClient:
    """An OpenAI client without retries that leaves no connection open in a closed event loop.

    Args:
        base_url: Whom to ask.
    """

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.chat = self.completions = self

    async def create(self, **request: Any) -> Any:
        http = DefaultAsyncHttpxClient(verify=False)  # loading certificates is slow
        async with AsyncOpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, http_client=http
        ) as client:
            return await client.chat.completions.create(**request)


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels(helpful) as server:
        yield server


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def make_apo(models: ScriptedModels) -> Callable[..., APO[Any]]:
    """Return a function that makes APO with the scripted models and small sizes."""

    def make(**options: Any) -> APO[Any]:
        return APO(OneCallClient(models.base_url), **{**SMALL, **options})

    return make


@pytest.fixture
def fit(store: InMemoryLightningStore) -> Callable[..., None]:
    """Return a function that runs APO with the counting agent or another one."""

    def run(algorithm: APO[Any], agent: LitAgent[Any] = counting, **options: Any) -> None:
        trainer = Trainer(
            **{
                "algorithm": algorithm,
                "store": store,
                "strategy": "shm",
                "adapter": "messages",
                "n_runners": 4,
                "initial_resources": {
                    "llm": LLM(endpoint="http://127.0.0.1:1/v1", model="none"),
                    "prompt": PromptTemplate(template=SEED_PROMPT, engine="f-string"),
                },
                **options,
            }
        )
        trainer.fit(agent, list(range(12)), val_dataset=list(range(8)))

    return run
