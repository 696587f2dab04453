"""Function agents: the three decorators, sync and async, with an OpenAI client and a trainer."""

import asyncio
import os
from typing import TypedDict

import agentlightning as agl
from openai import AsyncOpenAI, OpenAI


class Question(TypedDict):
    question: str
    answer: str


def ask(client: OpenAI, model: str, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    answer = client.chat.completions.create(model=model, messages=messages)
    return answer.choices[0].message.content or ""


@agl.rollout
def with_llm(task: Question, llm: agl.LLM, rollout: agl.Rollout) -> float:
    assert rollout.mode == ("val" if task["question"].startswith("V") else "train")
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "dummy") as client:
        return float(ask(client, llm.model, task["question"]) == task["answer"])


@agl.llm_rollout(strip_proxy=False)
async def without_reward(task: Question, llm: agl.ProxyLLM) -> None:
    async with AsyncOpenAI(base_url=llm.get_base_url(None, None), api_key="dummy") as client:
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model=llm.model, messages=messages)
    agl.emit_reward(float(answer.choices[0].message.content == task["answer"]))


@agl.prompt_rollout
def with_prompt(task: Question, prompt_template: agl.PromptTemplate) -> float:
    return 0.5 if prompt_template.format(**task) == "2 + 2 = 4" else 0.0


async def rewards(store: agl.LightningStore) -> list[float | None]:
    rollouts = await store.query_rollouts(status_in=["succeeded"])
    return [agl.find_final_reward(await store.query_spans(r.rollout_id)) for r in rollouts]


if __name__ == "__main__":
    agl.setup_logging("WARNING")
    url = os.environ["OPENAI_BASE_URL"]
    train: list[Question] = [{"question": "2 + 2", "answer": "4"}, {"question": "3", "answer": "5"}]
    val: list[Question] = [{"question": "V", "answer": "4"}]
    resources = {
        with_llm: {"main_llm": agl.LLM(endpoint=url, model="simulated")},
        without_reward: {"main_llm": agl.ProxyLLM(endpoint=url, model="simulated")},
        with_prompt: {
            "prompt": agl.PromptTemplate(template="{question} = {answer}", engine="f-string")
        },
    }
    for agent, initial in resources.items():
        assert isinstance(agent, agl.LitAgent)
        store = agl.InMemoryLightningStore()
        trainer = agl.Trainer(
            n_workers=1,
            store=store,
            tracer=agl.OtelTracer(),
            strategy="shm",
            initial_resources=initial,
            algorithm=agl.Baseline(polling_interval=0.05),
        )
        trainer.fit(agent, train, val_dataset=val)
        print(agent.__name__, asyncio.run(rewards(store)))
