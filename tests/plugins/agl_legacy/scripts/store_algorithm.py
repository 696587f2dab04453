"""An algorithm that knows only the store: `agl store`, the algorithm and a runner in terminals."""

import argparse
import asyncio

import agentlightning as agl
from openai import AsyncOpenAI

CANDIDATES = ["Say it in one word: {task}", "Say it at length: {task}"]


@agl.rollout
async def agent(task: str, prompt_template: agl.PromptTemplate) -> float:
    async with AsyncOpenAI() as client:
        answer = await client.chat.completions.create(
            model="simulated",
            messages=[{"role": "user", "content": prompt_template.format(task=task)}],
        )
    return 1.0 / len((answer.choices[0].message.content or "").split())


async def algorithm(*, store: agl.LightningStore) -> None:
    scores: list[tuple[float, str]] = []
    for candidate in CANDIDATES:
        resources: agl.NamedResources = {
            "prompt_template": agl.PromptTemplate(template=candidate, engine="f-string")
        }
        snapshot = await store.add_resources(resources)
        rollout = await store.enqueue_rollout(
            input="Which planet is this?", mode="train", resources_id=snapshot.resources_id
        )
        while not (
            done := await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0.1)
        ):
            await asyncio.sleep(0.05)
        spans = await store.query_spans(done[0].rollout_id)
        reward = agl.find_final_reward(spans)
        print(f"[algorithm] {candidate!r}: {done[0].status}, reward {reward}", flush=True)
        assert reward is not None
        scores.append((reward, candidate))
    print(f"[algorithm] best: {max(scores)[1]!r}", flush=True)


async def runner(*, store: agl.LightningStore) -> None:
    tracer = agl.OtelTracer()
    worker = agl.LitAgentRunner[str](tracer, max_rollouts=len(CANDIDATES), poll_interval=0.2)
    with worker.run_context(agent=agent, store=store):
        await worker.iter()
    print("[runner] done", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["algorithm", "runner"])
    parser.add_argument("--store", default="http://localhost:4747")
    arguments = parser.parse_args()
    store = agl.LightningStoreClient(arguments.store)
    try:
        if arguments.mode == "algorithm":
            await algorithm(store=store)
        else:
            await runner(store=store)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
