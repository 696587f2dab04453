"""Data for fine-tuning: an algorithm enqueues tasks and collects triplets of the proxy's calls."""

import os

import agentlightning as agl
from agentlightning.algorithm.decorator import algo
from agentlightning.algorithm.utils import batch_iter_over_dataset
from agentlightning.types import EnqueueRolloutRequest, RolloutConfig
from openai import OpenAI


@agl.rollout
def solve(task: str, llm: agl.LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key="dummy") as client:
        answer = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task}]
        )
    return float("42" in (answer.choices[0].message.content or ""))


@algo
async def collect(*, store, adapter, llm_proxy, train_dataset):
    llm_proxy.update_model_list(
        [
            {
                "model_name": "student",
                "litellm_params": {
                    "model": "hosted_vllm/simulated",
                    "api_base": os.environ["OPENAI_BASE_URL"],
                },
            }
        ]
    )
    await llm_proxy.restart()
    snapshot = await store.add_resources({"main_llm": llm_proxy.as_resource()})
    batch = next(iter(batch_iter_over_dataset(train_dataset, 2)))
    config = RolloutConfig(timeout_seconds=60, max_attempts=2, retry_condition=["failed"])
    rollouts = await store.enqueue_many_rollouts(
        [
            EnqueueRolloutRequest(
                input=task, mode="train", resources_id=snapshot.resources_id, config=config
            )
            for task in batch
        ]
    )
    done = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts], timeout=30)
    triplets = []
    for rollout in done:
        spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
        triplets.extend(adapter.adapt(spans))
    print(sorted(r.status for r in done), sorted(t.reward for t in triplets))
    print(all(t.response["token_ids"] for t in triplets))
    await llm_proxy.stop()


if __name__ == "__main__":
    trainer = agl.Trainer(
        n_runners=2,
        algorithm=collect,
        strategy={"type": "shm", "main_thread": "algorithm"},
        tracer=agl.DummyTracer() if os.environ.get("NO_TRACER") else agl.OtelTracer(),
        llm_proxy=agl.LLMProxy(port=int(os.environ["PORT"]), model_list=[]),
        adapter={"agent_match": None},
    )
    trainer.fit(solve, ["What is 6 * 7?", "What is 6 * 6?"])
