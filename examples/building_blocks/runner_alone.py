"""The runner alone: an agent tried on three tasks, without a trainer or an algorithm."""

from __future__ import annotations

import asyncio

import agl_core as agl
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

RIGHT = {"2+2": 4, "3*3": 9, "1/0": None}


@agl.rollout
def calculator(task: str, prompt_template: agl.PromptTemplate) -> float:
    careful = "carefully" in prompt_template.format()
    answer = eval(task) if careful else 4  # stands in for a call of a model
    agl.emit_message(f"{task} = {answer}")
    return float(answer == RIGHT[task])


async def main() -> None:
    store = InMemoryLightningStore()
    runner = LitAgentRunner(OtelTracer())
    print("prompt                 task   status     reward  spans")
    with runner.run_context(agent=calculator, store=store):
        for text in ("Calculate.", "Calculate carefully."):
            prompt = agl.PromptTemplate(template=text, engine="f-string")
            for task in RIGHT:
                try:
                    # `step` bypasses the queue, and raises the error of the agent.
                    rollout = await runner.step(task, resources={"prompt": prompt})
                except ZeroDivisionError as error:
                    print(f"{text:22} {task:6} {'failed':10} {error}")
                    continue
                spans = (await store.query_spans(rollout.rollout_id)).items
                reward = agl.find_final_reward(spans)
                print(f"{text:22} {task:6} {rollout.status:10} {reward!s:7} {len(spans)}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
